"""The grid of attempts: deterministic ids, and which skill conditions which attempt."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from mkb_core.bench.dsl import DSLS
from mkb_core.config import RUNS, Record, unknown

Arm = Literal["solo", "skill"]
ARMS: tuple[Arm, ...] = ("solo", "skill")


class Attempt(Record):
    """One try: model x variant x arm x replicate."""

    model: str
    problem: str
    dsl: str
    arm: Arm
    replicate: int = 1

    @property
    def id(self) -> str:
        """For example `glm-5.3/p28/tirx/skill/r1`."""
        return f"{self.model}/{self.problem}/{self.dsl}/{self.arm}/r{self.replicate}"

    def folder(self, runs: Path = RUNS) -> Path:
        """Where everything about this attempt is kept."""
        return runs / "attempts" / self.id

    @property
    def source(self) -> "Attempt | None":
        """The solo attempt in the other DSL whose skill conditions this one."""
        if self.arm == "solo":
            return None
        return self.model_copy(update={"dsl": other(self.dsl), "arm": "solo"})

    @property
    def baseline(self) -> "Attempt | None":
        """The solo attempt of the same variant."""
        return self.model_copy(update={"arm": "solo"}) if self.arm == "skill" else None


def other(dsl: str) -> str:
    """The other DSL of the pair."""
    first, second = DSLS
    if dsl not in DSLS:
        raise unknown("DSL", dsl, DSLS)
    return second if dsl == first else first


def grid(
    model: str,
    problems: Iterable[str],
    dsls: Iterable[str] = tuple(DSLS),
    arm: Arm = "solo",
    replicates: int = 1,
) -> Iterator[Attempt]:
    """Attempts of one arm, problem by problem, so that comparisons finish early."""
    dsls = tuple(dsls)
    for replicate in range(1, replicates + 1):
        for problem in problems:
            for dsl in dsls:
                yield Attempt(model=model, problem=problem, dsl=dsl, arm=arm, replicate=replicate)
