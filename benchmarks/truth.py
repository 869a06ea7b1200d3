"""The official time against the usual way: CUDA events around the same calls in one process.

python benchmarks/truth.py [--out benchmarks/results/truth-h200.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from lanes import Job, judge, save

from mkb_core.bench.problems import get_problem
from mkb_core.config import ROOT

MICROSECONDS, SHARE = 2.0, 0.02
EVENTS = """
import json, statistics, sys, time, torch
from mkb_core.bench.problems import load_module
reference, kernel = load_module(sys.argv[1], "reference"), load_module(sys.argv[2], "kernel")
workload = reference.FULL if sys.argv[3] == "full" else reference.SMALL
held = reference.make_inputs(workload, "cuda")
events, walls = [], []
for i in range(60):
    for to, new in zip(held, reference.make_inputs(workload, "cuda")):
        to.copy_(new)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    began = time.perf_counter_ns()
    start.record(); kernel.solve(*held); end.record(); torch.cuda.synchronize()
    walls.append((time.perf_counter_ns() - began) / 1e3); events.append(start.elapsed_time(end) * 1e3)
print(json.dumps([statistics.median(events[10:]), statistics.median(walls[10:])]))
"""


def jobs() -> list[Job]:
    """The solutions and honest kernels, full workload."""
    found = []
    for problem in ("p28", "p36"):
        for dsl in ("cutedsl", "tirx"):
            found.append(Job(f"{problem} {dsl}", problem, dsl, get_problem(problem).solution_path(dsl), "full"))
    for path in sorted((ROOT / "tests" / "honest").glob("p*.py"))[::4]:
        problem, dsl = path.stem.split("__")[0].split("_")
        found.append(Job(path.stem, problem, dsl, path, "full"))
    return found


def in_process(job: Job) -> tuple[float, float]:
    """Median microseconds between events, and on the host's clock with synchronisation, in a fresh process."""
    reference = get_problem(job.problem).reference_path
    arguments = [sys.executable, "-c", EVENTS, str(reference), str(job.path), "full"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{job.key}: {done.stderr[-800:]}")
    event, wall = json.loads(done.stdout.splitlines()[-1])
    return event, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    wanted, rows = jobs(), []
    verdicts = list(judge(wanted, given.lanes, "cuda"))
    print(f"{'kernel':38} {'official':>9} {'nothing':>8} {'wall':>8} {'events':>8} official - nothing - events")
    for job, verdict in verdicts:
        if not verdict.passed:
            print(job.key, verdict.status, verdict.message[:200])
            continue
        event, wall = in_process(job)
        official, nothing = verdict.kernel_ms * 1e3, verdict.nothing_ms * 1e3
        difference = official - nothing - event
        near = abs(difference) <= max(MICROSECONDS, SHARE * event)
        rows.append(
            {
                "kernel": job.key,
                "official_us": official,
                "nothing_us": nothing,
                "wall_us": wall,
                "event_us": event,
                "near": near,
            }
        )
        print(f"{job.key:38} {official:9.1f} {nothing:8.1f} {wall:8.1f} {event:8.1f} {difference:+.1f} {near}")
    ratios = [r["official_us"] / r["wall_us"] for r in rows]
    print(f"{sum(r['near'] for r in rows)} of {len(rows)} near; official / wall: {statistics.median(ratios):.3f}")
    save(given.out, {"rows": rows})


if __name__ == "__main__":
    main()
