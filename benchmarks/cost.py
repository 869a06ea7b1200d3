"""Seconds of a verdict by phase, against a plain judge in one fresh process; and verdicts an hour of one GPU.

python benchmarks/cost.py [--repeats 5] [--lanes 4] [--out benchmarks/results/cost-h200.json]
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lanes import Job, judge, save

from mkb_core.bench.problems import get_problem
from mkb_core.bench.verify import Verifier

# what a plain judge does: import, five checks against a float64 anchor, 10 + 50 timed calls of both
PLAIN = """
import importlib.util, statistics, sys, torch
def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec); sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
reference, kernel = load(sys.argv[1], "reference"), load(sys.argv[2], "kernel")
for seed in range(5):
    torch.manual_seed(seed)
    inputs = reference.make_inputs(reference.FULL, "cuda")
    got, want = kernel.solve(*inputs), reference.reference(*inputs)
    exact = reference.reference(*(v.double() if v.is_floating_point() else v for v in inputs))
    error = lambda a: (a.double() - exact).abs().max()
    assert error(got) <= 3 * max(error(want), torch.finfo(want.dtype).eps * exact.abs().max())
for f in (kernel.solve, reference.reference):
    times = []
    for i in range(60):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record(); f(*inputs); end.record(); torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    print(statistics.median(times[10:]))
"""


def plain(problem: str, dsl: str) -> float:
    """Wall seconds of the plain judge."""
    found = get_problem(problem)
    arguments = [sys.executable, "-c", PLAIN, str(found.reference_path), str(found.solution_path(dsl))]
    started = time.monotonic()
    subprocess.run(arguments, check=True, capture_output=True)
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result: dict = {}
    for dsl in ("cutedsl", "tirx"):
        path = get_problem("p28").solution_path(dsl)
        judged = [plain("p28", dsl) for _ in range(given.repeats)]
        with Verifier("cuda") as verifier:
            verifier.verify("p28", dsl, path.read_bytes())
            verdicts = [verifier.verify("p28", dsl, path.read_bytes()) for _ in range(given.repeats)]
        ours, theirs = statistics.median(v.seconds for v in verdicts), statistics.median(judged)
        phases = {p: statistics.median(v.phases[p] for v in verdicts) for p in verdicts[0].phases}
        jobs = [Job(dsl, "p28", dsl, path)] * (given.lanes * given.repeats)
        started = time.monotonic()
        # the first verdict of each lane starts its fork servers and is not counted
        for finished, _ in enumerate(judge([*jobs[: given.lanes], *jobs], given.lanes, "cuda"), 1):
            started = time.monotonic() if finished == given.lanes else started
        hour = 3600 * len(jobs) / (time.monotonic() - started)
        result[dsl] = {
            "verdict_s": ours, "plain_s": theirs, "ratio": ours / theirs, "phases_s": phases,
            "lanes": given.lanes, "verdicts_an_hour": hour, "times_plain": hour * theirs / 3600,
        }  # fmt: skip
        print(f"p28 {dsl}: {ours:.2f} s, plain judge {theirs:.2f} s, ratio {ours / theirs:.2f}; {phases}")
        print(f"  {given.lanes} lanes: {hour:.0f} an hour, {hour * theirs / 3600:.1f} times the plain judge's")
    save(given.out, result)


if __name__ == "__main__":
    main()
