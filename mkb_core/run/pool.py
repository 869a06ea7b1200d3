"""Runs the attempts of a plan: what is finished is kept, everything else is run, each fails alone."""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mkb_core import records
from mkb_core.bench.verdict import Verdict
from mkb_core.bench.verify import Verifier, resolve
from mkb_core.config import DATA, RUNS
from mkb_core.run import environments
from mkb_core.run.demo import DemoServer
from mkb_core.run.models import get_model, require_ready
from mkb_core.run.plan import Attempt
from mkb_core.run.session import Session, fingerprint, identity
from mkb_core.run.trial import run_trial

RECORDINGS = DATA / "demo"
Progress = Callable[[str], None]


class NoSource(RuntimeError):
    """A skill attempt whose source has not run yet."""


def status(attempt: Attempt, device: str, runs: Path = RUNS) -> str:
    """`done`, `stale` (finished, but for another task, protocol, DSL version or device) or `missing`."""
    rows = records.finished(attempt.folder(runs))
    if rows is None:
        return "missing"
    return "done" if rows["attempts"][0]["fingerprint"] == fingerprint(attempt, device) else "stale"


def given_skill(attempt: Attempt, runs: Path) -> str | None:
    """The skill that conditions a skill attempt, verbatim; None where its source left none."""
    source = attempt.source
    if source is None:
        return None
    if records.finished(source.folder(runs)) is None:
        raise NoSource(f"{attempt.id} needs the skill of {source.id}, which has not run: run 01_solo first")
    path = source.folder(runs) / "SKILL.md"
    return path.read_bytes().decode() if path.exists() else None


class Pool:
    """Runs attempts on this machine: sandboxes side by side, verdicts one at a time."""

    def __init__(
        self,
        *,
        runs: Path = RUNS,
        device: str = "auto",
        environment: str = "auto",
        workers: int = 2,
        minutes: float | None = None,
        recordings: Path = RECORDINGS,
        rerun_stale: bool = False,
        progress: Progress = print,
    ) -> None:
        self.runs, self.environment, self.minutes = runs, environment, minutes
        self.recordings, self.progress = recordings, progress
        self.device, self.rerun_stale = resolve(device), rerun_stale
        self.slots = asyncio.Semaphore(workers)
        self.judging = asyncio.Lock()
        self.verifier: Verifier | None = None
        self.server: DemoServer | None = None
        self.done = self.total = 0

    async def run(self, attempts: Iterable[Attempt]) -> None:
        """Run what is not finished; raises at the end if an attempt failed for reasons of ours."""
        environments.check(self.environment)
        with alone(self.runs):  # before looking: what another run finishes meanwhile must not be run again
            await self.run_missing(attempts)

    async def run_missing(self, attempts: Iterable[Attempt]) -> None:
        """What `run` does while it holds the folder."""
        found = {a: status(a, self.device, self.runs) for a in attempts}
        todo = [a for a, state in found.items() if state == "missing" or (state == "stale" and self.rerun_stale)]
        stale = sum(state == "stale" for state in found.values())
        if stale and not self.rerun_stale:
            self.progress(
                f"{stale} finished attempts are stale (their task, protocol, DSL version or device has changed) "
                "and are kept; rerun_stale=True runs them again"
            )
        for model in {a.model for a in todo}:
            require_ready(get_model(model))
        for attempt in todo:
            given_skill(attempt, self.runs)
        self.total = len(todo)
        async with self.resources(todo):
            results = await asyncio.gather(*(self.one(a) for a in todo), return_exceptions=True)
        faults = [f"{a.id}: {r!r}" for a, r in zip(todo, results, strict=True) if isinstance(r, BaseException)]
        if faults:
            raise RuntimeError("could not run, the same line again retries:\n" + "\n".join(faults))

    @contextlib.asynccontextmanager
    async def resources(self, todo: list[Attempt]) -> AsyncIterator[None]:
        """The verifier, and the replay server where a demo attempt needs one."""
        if not todo:
            yield
            return
        self.verifier = Verifier(self.device)
        with contextlib.ExitStack() as stack:
            stack.callback(self.verifier.close)
            if any(get_model(a.model).demo for a in todo):
                self.server = stack.enter_context(DemoServer(self.recordings))
            yield

    async def one(self, attempt: Attempt) -> None:
        """One attempt, from the skill that it is given to its finished rows."""
        async with self.slots:
            folder = attempt.folder(self.runs)
            set_aside(folder)
            skill = given_skill(attempt, self.runs)
            if attempt.arm == "skill" and skill is None:
                records.finish(folder, self.skipped(attempt))
                self.tell(attempt, "skipped: its source wrote no skill")
                return
            model = get_model(attempt.model)
            session = Session(self, attempt, model, folder)
            outcome = await run_trial(
                attempt,
                directory=folder / "trial",
                ledger=folder / "ledger",
                model=model,
                evaluate=session.evaluate,
                skill=skill,
                api_base=self.server.url(attempt) if model.demo and self.server else model.api_base,
                environment=self.environment,
                minutes=self.minutes,
            )
            if not outcome.fair:
                raise RuntimeError(f"{outcome.stop}: {outcome.message}")
            rows = await session.rows(outcome, skill)
            records.finish(folder, rows)
            row = rows["attempts"][0]
            speed = f", {row['speedup']:.2f}x" if row["speedup"] is not None else ""
            count = f"{row['submissions']} submission{'s' * (row['submissions'] != 1)}"
            self.tell(attempt, f"{row['verdict'] or 'no kernel.py'}{speed}, {count}, {row['seconds']:.0f} s")

    def tell(self, attempt: Attempt, text: str) -> None:
        """One line a finished attempt."""
        self.done += 1
        self.progress(f"[{self.done}/{self.total}] {attempt.id}: {text}")

    async def judge(self, attempt: Attempt, source: bytes) -> Verdict:
        """A verdict, in turn."""
        assert self.verifier is not None
        async with self.judging:
            return await asyncio.to_thread(self.verifier.verify, attempt.problem, attempt.dsl, source)

    def skipped(self, attempt: Attempt) -> dict[str, list[dict[str, Any]]]:
        """Rows of a treatment whose source wrote no skill: it inherits the baseline's outcome."""
        baseline = attempt.baseline
        assert baseline is not None
        finished = records.finished(baseline.folder(self.runs))
        if finished is None:
            raise NoSource(f"{attempt.id} inherits from {baseline.id}, which has not run: run 01_solo first")
        kept = ("verdict", "passed", "speedup", "kernel_ms", "baseline_ms", "device", "demo")
        row = dict.fromkeys(records.columns("attempts"))
        row |= {k: finished["attempts"][0][k] for k in kept}
        row |= identity(attempt) | {
            "status": "skipped",
            "submissions": 0,
            "fingerprint": fingerprint(attempt, self.device),
        }
        return {"attempts": [row], "submissions": [], "verdicts": [], "skills": []}


@contextlib.contextmanager
def alone(runs: Path) -> Iterator[None]:
    """Hold the folder against a second run, which would take unfinished attempts for leftovers."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(f"another run is at work in {runs}: wait for it, or use another folder") from None
        yield


def set_aside(folder: Path) -> None:
    """Move what an interrupted try of this attempt left (its submissions and spend) to `interrupted/N`."""
    left = [p for p in folder.iterdir() if p.name != "interrupted"] if folder.exists() else []
    if not left:
        folder.mkdir(parents=True, exist_ok=True)
        return
    n = 1
    while (folder / "interrupted" / str(n)).exists():
        n += 1
    aside = folder / "interrupted" / str(n)
    aside.mkdir(parents=True)
    for path in left:
        path.rename(aside / path.name)
