"""How far verdicts of the same kernel lie apart: quartiles over the median and the worst, of the speedup.

python benchmarks/repeatability.py [--repeats 20] [--lanes 3] [--out benchmarks/results/repeatability-h200.json]
"""

import argparse
import statistics
from pathlib import Path

from lanes import Job, judge, save

from mkb_core.bench.problems import get_problem
from mkb_core.config import ROOT

BARS = {True: (0.01, 0.03), False: (0.03, 0.08)}  # above 50 us, and below: quartiles, worst
HONEST = ROOT / "tests" / "honest"
SLOW = ("p36_cutedsl__thread_per_row", "p36_tirx__thread_per_element", "p28_cutedsl__three_kernels")


def jobs() -> list[Job]:
    """Four solutions on both workloads, and slower honest kernels on the full one."""
    found = []
    for problem in ("p28", "p36"):
        for dsl in ("cutedsl", "tirx"):
            path = get_problem(problem).solution_path(dsl)
            found += [Job(f"{problem} {dsl} {w}", problem, dsl, path, w) for w in ("full", "small")]
    for name in SLOW:
        problem, dsl = name.split("__")[0].split("_")
        found.append(Job(f"{name} full", problem, dsl, HONEST / f"{name}.py", "full"))
    return found


def summary(key: str, verdicts: list) -> dict:
    """Median time, and the spread of the speedup over verdicts."""
    speeds = [v.speedup for v in verdicts if v.passed]
    if len(speeds) < 4:
        return {"kernel": key, "verdicts": len(speeds), "messages": [v.message for v in verdicts if not v.passed]}
    median = statistics.median(speeds)
    low, _, high = statistics.quantiles(speeds, n=4)
    worst = max(abs(s - median) / median for s in speeds)
    milliseconds = statistics.median(v.kernel_ms for v in verdicts if v.passed)
    bars = BARS[milliseconds > 0.05]
    return {
        "kernel": key,
        "verdicts": len(speeds),
        "failed": [v.message for v in verdicts if not v.passed],
        "kernel_us": round(milliseconds * 1e3, 2),
        "speedup": round(median, 3),
        "quartiles_over_median": round((high - low) / median, 4),
        "worst": round(worst, 4),
        "within_bars": (high - low) / median <= bars[0] and worst <= bars[1],
        "speedups": [round(s, 4) for s in speeds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--only", default="", help="kernels whose name holds this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    wanted = [job for job in jobs() if given.only in job.key]
    verdicts: dict[str, list] = {job.key: [] for job in wanted}
    # the same kernel's verdicts are spread over the whole run, so that drift of the machine is in them
    for job, verdict in judge(wanted * given.repeats, given.lanes, "cuda"):
        verdicts[job.key].append(verdict)
    rows = [summary(key, found) for key, found in verdicts.items()]
    print(f"{'kernel':40} {'us':>9} {'speedup':>8} {'IQR/med':>8} {'worst':>7} within")
    for row in rows:
        if "kernel_us" in row:
            print(
                f"{row['kernel']:40} {row['kernel_us']:9.1f} {row['speedup']:8.2f} "
                f"{row['quartiles_over_median']:8.2%} {row['worst']:7.2%} {row['within_bars']}"
            )
        else:
            print(row)
    save(given.out, {"rows": rows})


if __name__ == "__main__":
    main()
