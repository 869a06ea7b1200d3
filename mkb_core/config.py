"""Where things are, and the constants of the protocol."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PROBLEMS = ROOT / "problems"
RUNS = ROOT / "runs"


class Record(BaseModel):
    """Base of every validated record: immutable, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SandboxLimits(Record):
    """What one attempt gets: cores, MiB, processes, minutes, feedback submissions."""

    cpus: int
    memory_mb: int
    processes: int
    minutes: float
    submissions: int


class Scaffold(Record):
    """The agent scaffold and the pinned version of its runner."""

    scaffold: str
    harbor: str


class VerdictRules(Record):
    """Numbers of calls, and deadlines in seconds."""

    draws: int
    warmup: int
    timed: int
    timed_most: int
    standard_error: float
    speedup_cap: float
    first_call_seconds: float
    call_seconds: float
    verdict_seconds: float
    policy_calls: int


class AccuracyRule(Record):
    """Allowance = factor * max(reference error, eps(dtype) * max|anchor|)."""

    factor: float


class ScoreRule(Record):
    """Clipping and thresholds of the paired ratio, baseline time / treatment time."""

    ratio_min: float
    ratio_max: float
    helped: float
    harmed: float


class Protocol(Record):
    """Contents of data/protocol.yaml."""

    sandbox: SandboxLimits
    agent: Scaffold
    verdict: VerdictRules
    accuracy: AccuracyRule
    score: ScoreRule
    tiers: tuple[float, ...]


def load_yaml(path: Path) -> Any:
    """Contents of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def protocol() -> Protocol:
    """The protocol; raises pydantic.ValidationError where data/protocol.yaml is off."""
    return Protocol.model_validate(load_yaml(DATA / "protocol.yaml"))


def unknown(kind: str, name: object, known: object) -> ValueError:
    """The error for a name that does not exist: it lists what does."""
    return ValueError(f"unknown {kind} {name!r}; there are: {', '.join(map(str, known))}")  # type: ignore[call-overload]
