"""The verifier's answer to one submission."""

from typing import Literal

from pydantic import Field

from mkb_core.config import Record

Device = Literal["cuda", "emulated"]
Status = Literal["passed", "rule", "build", "runtime", "spec", "value", "unstable", "bypass", "timeout", "infra"]


class Verdict(Record):
    """One judgement. Times are milliseconds, medians over the timed calls; unknown is None, never 0.

    A record says which device it comes from: an `emulated` verdict covers correctness and rules on the small
    workload and never carries a time.
    """

    problem: str
    dsl: str
    device: Device
    workload: Literal["full", "small"]
    status: Status
    message: str
    source_sha256: str
    draws: int = 0  # calls whose outputs were compared with the anchor
    error_ratio: float | None = None  # worst error over its allowance
    launches: int | None = None  # DSL launches that the policy run suppressed
    kernel_ms: float | None = None
    kernel_p10_ms: float | None = None
    kernel_p90_ms: float | None = None
    baseline_ms: float | None = None
    speedup: float | None = None
    seconds: float | None = None  # wall time of the verdict
    seed: int | None = None  # the draws are a function of problem, workload and this; no submission ever sees it
    phases: dict[str, float] = Field(default_factory=dict)  # seconds of each part of the verdict
    gpu: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    output: str = ""  # what the submission printed: for display only, cut to 4 KiB

    @property
    def passed(self) -> bool:
        """Whether the kernel is valid."""
        return self.status == "passed"
