"""Faults, each followed by an honest verdict on the same verifier: crash, hang, out of memory, a process left.

python benchmarks/recovery.py [--repeats 25] [--lanes 4] [--out benchmarks/results/recovery-h200.json]
"""

import argparse
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lanes import save

from mkb_core.bench.problems import get_problem
from mkb_core.bench.verify import Verifier
from mkb_core.config import protocol

# past the static rules, so that only the processes stand between a fault and the next verdict
FAULTS = {
    "crash": ("def solve(x, w):\n    import ctypes; ctypes.string_at(0)\n", "runtime"),
    "hang": ("def solve(x, w):\n    while True: pass\n", "timeout"),
    "memory": (
        "import torch\ndef solve(x, w):\n    return torch.empty(1 << 43, dtype=torch.uint8, device='cuda')\n",
        "runtime",
    ),
    "survivor": ("import os\ndef solve(x, w):\n    os.fork(); os._exit(3)\n", "rule"),
}
LIMITS = protocol().verdict.model_copy(
    update={"first_call_seconds": 4, "call_seconds": 3, "warmup": 3, "timed": 10, "timed_most": 10}
)


def lane(number: int, repeats: int, device: str) -> list[dict]:
    """Faults and honest verdicts in turn on one verifier."""
    source = get_problem("p36").solution_path("cutedsl").read_bytes()
    rows = []
    with Verifier(device, LIMITS) as verifier:
        for i in range(repeats):
            name = list(FAULTS)[(i + number) % len(FAULTS)]
            text, expected = FAULTS[name]
            fault = verifier.facts_without_rules("p36", "cutedsl", text.encode(), "small")
            started = time.monotonic()
            honest = verifier.verify("p36", "cutedsl", source, workload="small")
            rows.append(
                {
                    "fault": name,
                    "status": fault["status"],
                    "as_expected": fault["status"] == expected,
                    "honest": honest.status,
                    "message": "" if honest.passed else honest.message[:500],
                    "seconds": round(time.monotonic() - started, 2),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25, help="faults a lane")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.lanes) as pool:
        rows = [
            r
            for rows in pool.map(
                lane, *zip(*[(n, given.repeats, given.device) for n in range(given.lanes)], strict=True)
            )
            for r in rows
        ]
    for name in FAULTS:
        mine = [r for r in rows if r["fault"] == name]
        print(name, dict(Counter(r["status"] for r in mine)), "then", dict(Counter(r["honest"] for r in mine)))
    clean = sum(r["honest"] == "passed" and r["as_expected"] for r in rows)
    print(f"{clean} of {len(rows)} clean")
    for row in rows:
        if row["message"] or not row["as_expected"]:
            print(row)
    save(given.out, {"clean": clean, "of": len(rows), "rows": rows})


if __name__ == "__main__":
    main()
