"""What happens on the host during one attempt: verdicts on its submissions, and the rows that it leaves."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkb_core import records
from mkb_core.bench.dsl import get_dsl
from mkb_core.bench.problems import get_problem
from mkb_core.bench.verdict import Verdict
from mkb_core.config import protocol
from mkb_core.run import task
from mkb_core.run.feedback import NotJudged, feedback
from mkb_core.run.models import Model
from mkb_core.run.plan import Attempt
from mkb_core.run.trial import TrialOutcome

if TYPE_CHECKING:
    from mkb_core.run.pool import Pool


def fingerprint(attempt: Attempt, device: str) -> str:
    """Digest of what the result depends on: instruction, reference, protocol, DSL version, device."""
    problem, dsl = get_problem(attempt.problem), get_dsl(attempt.dsl)
    parts = (
        task.instruction(problem, dsl),
        problem.reference_path.read_text(encoding="utf-8"),
        protocol().model_dump_json(),
        importlib.metadata.version(dsl.package),
        device,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Session:
    """What happens on the host during one attempt: verdicts on submissions, then the final score."""

    def __init__(self, pool: Pool, attempt: Attempt, model: Model, folder: Path) -> None:
        self.pool, self.attempt, self.model, self.folder = pool, attempt, model, folder
        self.started = time.monotonic()
        self.submissions: list[dict[str, Any]] = []
        self.verdicts: list[dict[str, Any]] = []

    async def evaluate(self, number: int, source: bytes) -> dict[str, Any]:
        """Judge a feedback submission; returns what the agent may see. Raises NotJudged for `infra`."""
        verdict = await self.judge(number, source)
        if verdict.status == "infra":
            raise NotJudged(verdict.message)
        return feedback(verdict, protocol().sandbox.submissions - number)

    async def judge(self, number: int, source: bytes) -> Verdict:
        """Judge one file and note it; the broker keeps feedback submissions, the final file is kept here."""
        seconds = round(time.monotonic() - self.started, 1)
        path = self.folder / "ledger" / f"{number:02d}.py" if number else self.folder / "final.py"
        if not number:
            path.write_bytes(source)
        verdict = await self.pool.judge(self.attempt, source)
        facts = json.loads(verdict.model_dump_json(exclude={"message", "output", "versions", "phases"}))
        records.write_whole(self.folder / "verdicts" / f"{path.stem}.json", verdict.model_dump_json(indent=1))
        common = {"attempt": self.attempt.id, "number": number, "demo": self.model.demo}
        self.verdicts.append({**facts, **common})
        self.submissions.append(
            {
                **common,
                "sha256": verdict.source_sha256,
                "bytes": len(source),
                "seconds": seconds,
                "path": str(path.relative_to(self.pool.runs)),
                "device": verdict.device,
            }
        )
        return verdict

    async def rows(self, outcome: TrialOutcome, given: str | None) -> dict[str, list[dict[str, Any]]]:
        """Every table's rows; the final kernel.py is judged here, after the agent's end."""
        feedbacks = sum(row["status"] != "infra" for row in self.verdicts)
        final = None
        if outcome.kernel is not None:
            final = await self.judge(0, outcome.kernel)
            if final.status == "infra":  # our fault: the attempt is run again, never scored
                raise NotJudged(final.message)
        if outcome.skill is not None:
            (self.folder / "SKILL.md").write_bytes(outcome.skill.encode())
        row = identity(self.attempt) | {
            "status": "run",
            "stop": outcome.stop,
            "verdict": final.status if final else None,
            "passed": bool(final and final.passed),
            "speedup": final.speedup if final else None,
            "kernel_ms": final.kernel_ms if final else None,
            "baseline_ms": final.baseline_ms if final else None,
            "submissions": feedbacks,
            "turns": outcome.turns,
            "tokens_in": outcome.tokens_in,
            "tokens_cached": outcome.tokens_cached,
            "tokens_out": outcome.tokens_out,
            "cost_usd": outcome.cost_usd,
            "seconds": round(outcome.seconds, 1),
            "skill_sha256": digest(outcome.skill),
            "given_skill_sha256": digest(given),
            "fingerprint": fingerprint(self.attempt, self.pool.device),
            "device": self.pool.device,
            "demo": self.model.demo,
        }
        return {
            "attempts": [row],
            "submissions": self.submissions,
            "verdicts": self.verdicts,
            "skills": [self.skill_row(outcome.skill)] if outcome.skill is not None else [],
        }

    def skill_row(self, skill: str) -> dict[str, Any]:
        """The row of the skill that the attempt left."""
        return {
            "attempt": self.attempt.id,
            "sha256": digest(skill),
            "characters": len(skill),
            "words": len(skill.split()),
            "path": str((self.folder / "SKILL.md").relative_to(self.pool.runs)),
            "demo": self.model.demo,
        }


def identity(attempt: Attempt) -> dict[str, Any]:
    """The columns that say which attempt a row is of."""
    fields = attempt.model_dump()
    return {"attempt": attempt.id, "family": get_problem(attempt.problem).family, **fields}


def digest(text: str | None) -> str | None:
    """SHA-256 of a text, None for none."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()
