"""The grid of attempts: deterministic ids, and which skill conditions which attempt."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from mkb_core.bench.dsl import DSLS
from mkb_core.bench.problems import Problem
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


def select(words: str, available: Iterable[Problem]) -> list[str]:
    """Ids of the problems that any of the words names: `all`, an id, a family, or a glob over `id_slug`.

    Raises ValueError for a word that names nothing, listing what exists.
    """
    found: set[str] = set()
    available = list(available)
    for word in words.replace(",", " ").split():
        named = {p.id for p in available if word in ("all", p.id, p.family) or fnmatch(f"{p.id}_{p.slug}", word)}
        if not named:
            raise unknown("problem, family or pattern", word, ["all", *(p.id for p in available)])
        found |= named
    return [p.id for p in available if p.id in found]
