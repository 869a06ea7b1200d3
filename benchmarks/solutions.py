"""Verdicts of our own solutions on this machine's device, as a table and as JSON.

python benchmarks/solutions.py [--repeats 3] [--out benchmarks/results/solutions-h200.json]
"""

import argparse
import json
import sys
from pathlib import Path

from mkb_core.bench.dsl import DSLS
from mkb_core.bench.problems import problems
from mkb_core.bench.verify import Verifier

COLUMNS = "problem dsl status kernel_ms p10 p90 eager_ms speedup error seconds".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    records = []
    print(*(c.rjust(9) for c in COLUMNS))
    with Verifier(given.device) as verifier:
        for problem in problems().values():
            for dsl in DSLS:
                if not problem.solution_path(dsl).exists():
                    continue
                for _ in range(given.repeats):
                    v = verifier.verify(problem.id, dsl, problem.solution_path(dsl).read_bytes())
                    records.append(json.loads(v.model_dump_json()))
                    row = (v.kernel_ms, v.kernel_p10_ms, v.kernel_p90_ms, v.baseline_ms, v.speedup, v.error_ratio)
                    numbers = [f"{x:.4f}" if x is not None else "-" for x in row]
                    print(*(str(x).rjust(9) for x in (problem.id, dsl, v.status, *numbers, f"{v.seconds:.1f}")))
                    if not v.passed:
                        print(v.message)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"command": "python " + " ".join(sys.argv), "verdicts": records}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
