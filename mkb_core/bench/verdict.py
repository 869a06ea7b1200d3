"""The verifier's answer to one submission."""

from typing import Literal

from pydantic import Field

from mkb_core.bench.gpu import Device, GpuState
from mkb_core.config import Record

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
    rows_over: int | None = None  # rows of a valid output that are wrong for their own scale
    row_ratio: float | None = None  # worst row's error over what the rule would allow to the row alone
    launches: int | None = None  # DSL launches that the policy run suppressed
    kernel_ms: float | None = None
    kernel_p10_ms: float | None = None
    kernel_p90_ms: float | None = None
    baseline_ms: float | None = None
    nothing_ms: float | None = None  # a call that does nothing, on the same clock; part of the times above
    hidden_ms: float | None = (
        None  # of the closed window around a call, what neither the call nor doing nothing explains
    )
    speedup: float | None = None
    blocks: list[float] = Field(default_factory=list)  # speedup of each block of timed calls
    timed: int | None = None  # timed calls
    dsl_share: float | None = None  # of the device time of one call, what the DSL's kernels took
    other_kernels: list[str] = Field(default_factory=list)  # the rest by name, longest first
    unenforced: list[str] = Field(default_factory=list)  # walls of the runner's box that this host has not
    seconds: float | None = None  # wall time of the verdict
    seed: int | None = None  # the draws are a function of problem, workload and this; no submission ever sees it
    phases: dict[str, float] = Field(default_factory=dict)  # seconds of each part of the verdict
    gpu: str | None = None
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    output: str = ""  # what the submission printed: for display only, cut to 4 KiB

    @property
    def passed(self) -> bool:
        """Whether the kernel is valid."""
        return self.status == "passed"
