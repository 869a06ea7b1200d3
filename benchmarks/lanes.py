"""Many verdicts side by side on one device: a lane is a verifier of its own; the timed part is taken in turns."""

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from mkb_core.bench.verdict import Verdict
from mkb_core.bench.verify import Verifier
from mkb_core.config import VerdictRules


class Job(NamedTuple):
    """One submission to judge; `key` says what the benchmark calls it."""

    key: str
    problem: str
    dsl: str
    path: Path
    workload: str | None = None


def judge(
    jobs: Iterable[Job], lanes: int, device: str = "auto", limits: VerdictRules | None = None
) -> Iterator[tuple[Job, Verdict]]:
    """Verdicts in the order of the jobs; raises what a verifier raises."""
    local, opened = threading.local(), []

    def one(job: Job) -> Verdict:
        if not hasattr(local, "verifier"):
            local.verifier = Verifier(device, limits)  # type: ignore[arg-type]
            opened.append(local.verifier)
        return local.verifier.verify(job.problem, job.dsl, job.path.read_bytes(), workload=job.workload)

    jobs = list(jobs)
    try:
        with ThreadPoolExecutor(lanes) as pool:
            yield from zip(jobs, pool.map(one, jobs), strict=True)
    finally:
        for verifier in opened:
            verifier.close()


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result with the command and the machine that made it."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command": "python " + " ".join(sys.argv), "date": time.strftime("%Y-%m-%d"), "machine": machine()}
    path.write_text(json.dumps({**head, **result}, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Cores, Python, and the GPU with its driver where there is one."""
    from mkb_core.bench.gpu import read_state

    state = read_state(set())
    gpu = {"gpu": state.name, "driver": state.driver} if state else {"gpu": None}
    return {"cores": os.cpu_count(), "python": platform.python_version(), **gpu}
