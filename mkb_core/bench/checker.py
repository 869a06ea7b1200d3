"""The trusted process: seeds, inputs, reference, anchor, clock, verdict. It never imports a submission."""

import contextlib
import gc
import hashlib
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

from mkb_core.bench import wire
from mkb_core.bench.accuracy import compare, promote
from mkb_core.bench.forkserver import send
from mkb_core.bench.participant import Participant, Rejected, Supervisor, dtype_name
from mkb_core.bench.problems import constants, get_problem, load_reference
from mkb_core.bench.runner import eager_settings
from mkb_core.config import VerdictRules, protocol


def preload(dsl: str, device: str) -> None:
    """What the fork server imports once."""
    import torch  # noqa: F401


def main(channel: socket.socket, message: dict[str, Any], context: None) -> None:
    """Judge one submission and send the facts of the verdict to the supervisor."""
    eager_settings()
    supervisor = Supervisor(channel)
    checker = Checker(supervisor, message)
    try:
        facts = {"status": "passed", "message": "valid", **checker.judge()}
    except Rejected as rejected:
        facts = {"status": rejected.status, "message": str(rejected)}
    send(channel, {"verdict": {**checker.facts, **facts}})


class Checker:
    """One verdict."""

    def __init__(self, supervisor: Supervisor, job: dict[str, Any]) -> None:
        import torch

        self.torch, self.supervisor = torch, supervisor
        self.device: str = job["device"]
        self.problem = get_problem(job["problem"])
        self.module = load_reference(self.problem)
        self.constants = constants(self.module, job["workload"])
        self.seed: int = job["seed"]
        self.rules = VerdictRules.model_validate(job["rules"])
        self.facts: dict[str, Any] = {"draws": 0, "error_ratio": 0.0, "phases": {}}
        if self.device == "cuda":
            self.facts["gpu"] = torch.cuda.get_device_name()

    def judge(self) -> dict[str, Any]:
        """Correctness draws, the policy run, then the timed calls; raises Rejected at the first fault."""
        timed = self.device == "cuda"
        with self.phase("reference"):
            sample = self.draw("shape")
            reference = self.reference(sample)
        with self.phase("load"):
            kernel = self.participant("kernel", sample, reference)
            kernel.loaded()
        with self.phase("draws"):
            for i in range(self.rules.draws):
                self.checked_call(kernel, f"draw {i + 1} of {self.rules.draws}", "value")
            if not timed:
                self.supervisor.end("kernel")
        with self.phase("policy"):
            self.bypass(sample, reference)
        with self.phase("timing"):
            return self.race(kernel, sample, reference) if timed else {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note the seconds of one part of the verdict, also where it ends the verdict."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.facts["phases"][name] = round(time.monotonic() - started, 3)

    def participant(self, part: str, sample: tuple[Any, ...], reference: tuple[Any, ...]) -> Participant:
        """A fresh runner process."""
        return Participant(self.supervisor, part, self.problem, self.torch_device, sample, reference, self.rules)

    @property
    def torch_device(self) -> str:
        """Where tensors live."""
        return "cuda" if self.device == "cuda" else "cpu"

    def draw(self, what: str) -> tuple[Any, ...]:
        """Fresh inputs; the seed is a function of the verdict's secret seed and the name of the call."""
        digest = hashlib.sha256(f"{self.seed}:{what}".encode()).digest()
        self.torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        inputs = self.module.make_inputs(self.constants, self.torch_device)
        return tuple(inputs)

    def reference(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The reference's outputs as a tuple, whatever its container; inputs are cloned where it may write."""
        given = tuple(v.clone() if hasattr(v, "clone") else v for v in inputs) if self.problem.mutates else inputs
        with self.torch.no_grad():
            result = self.module.reference(*given)
        return (result,) if isinstance(result, self.torch.Tensor) else tuple(result)

    def checked_call(self, kernel: Participant, what: str, status: str) -> float:
        """One call whose outputs must be right; returns its seconds."""
        inputs = self.draw(f"{kernel.part} {kernel.number}")
        seconds, report = kernel.call(inputs, what)
        if report.launches == 0:
            raise Rejected("bypass", f"{what}: no kernel of the DSL was launched; every call must run one")
        self.specification(report, kernel.outputs, what)
        kernel.unchanged(inputs, self.problem, what)
        fault, ratio = self.fault(kernel, inputs)
        self.facts["draws"] += 1
        self.facts["error_ratio"] = max(self.facts["error_ratio"], min(ratio, 1e30))
        if fault:
            raise Rejected(status, f"{what}: {fault}")
        return seconds

    def specification(self, report: wire.Report, outputs: tuple[Any, ...], what: str) -> None:
        """Container, number, shape, dtype and device, as the runner describes them."""
        expected = self.problem.container
        if report.container != expected:
            got = report.text or f"a {report.container}"
            raise Rejected("spec", f"{what}: solve returned {got}, expected a {expected}")
        if len(report.outputs) != len(outputs):
            raise Rejected("spec", f"{what}: {len(report.outputs)} outputs, expected {len(outputs)}")
        for output, want, spec in zip(report.outputs, outputs, self.problem.outputs, strict=True):
            if (output.dtype, output.shape) != (dtype_name(want), tuple(want.shape)):
                raise Rejected(
                    "spec",
                    f"{what}: {spec.name} is {output.dtype} {output.shape}, "
                    f"expected {dtype_name(want)} {tuple(want.shape)}",
                )
            if not output.landed:
                raise Rejected("spec", f"{what}: {spec.name} is not a dense tensor on the device of the inputs")

    def fault(self, kernel: Participant, inputs: tuple[Any, ...]) -> tuple[str, float]:
        """What is wrong with the landed outputs (empty: nothing), and the worst error over its allowance."""
        reference, anchor = self.reference(inputs), self.reference(promote(inputs))
        worst = 0.0
        for i, spec in enumerate(self.problem.outputs):
            result = compare(kernel.landed(i), reference[i], anchor[i], protocol().accuracy.factor)
            worst = max(worst, result.ratio)
            if not result.ok:
                return f"{spec.name}: {result.message}", worst
        return "", worst

    def bypass(self, sample: tuple[Any, ...], reference: tuple[Any, ...]) -> None:
        """The policy run: with the DSL's launches suppressed, or each replaced by a plain copy between two of
        its buffers, no output may be valid."""
        policy = self.participant("policy", sample, reference)
        try:
            policy.loaded()
            reports = [self.suppressed_call(policy, f"call {i + 1}", 0) for i in range(self.rules.policy_calls)]
        except Rejected as rejected:
            if rejected.status == "bypass":
                raise
            raise Rejected(
                "bypass",
                f"solve does not return where the DSL's launches are suppressed ({rejected}); "
                "it must not test what its kernels did",
            ) from None
        self.facts["launches"] = max(report.launches for report in reports)
        if self.facts["launches"] == 0:
            raise Rejected("bypass", "no kernel of the DSL was launched where launches are suppressed")
        for pair in pairs(max(report.pointers for report in reports)):
            try:
                self.suppressed_call(policy, f"copy {pair}", pair)
            except Rejected as rejected:
                if rejected.status == "bypass":
                    raise
        self.supervisor.end("policy")

    def suppressed_call(self, policy: Participant, what: str, pair: int) -> wire.Report:
        """One call of the policy run; a valid result is a bypass."""
        inputs = self.draw(f"policy {policy.number}")
        _, report = policy.call(inputs, what, pair)
        try:
            self.specification(report, policy.outputs, what)
        except Rejected:
            return report
        fault, _ = self.fault(policy, inputs)
        if not fault:
            how = (
                "with every launch of the DSL suppressed"
                if pair == 0
                else "with every launch of the DSL replaced by a copy of one of its buffers to another"
            )
            count = f"{report.launches} launches" if report.launches else "no launch at all"
            message = f"the outputs are still valid {how} ({count}): the DSL must do the computation"
            raise Rejected("bypass", message)
        return report

    def race(self, kernel: Participant, sample: tuple[Any, ...], reference: tuple[Any, ...]) -> dict[str, Any]:
        """Timed calls of kernel and baseline in alternating blocks; every output of the kernel is checked."""
        baseline = self.participant("baseline", sample, reference)
        baseline.loaded()
        times: dict[str, list[float]] = {"kernel": [], "baseline": []}
        with quiet():
            for block in blocks(self.rules.warmup, self.rules.timed):
                for i in block:
                    n = i - self.rules.warmup + 1
                    what = f"timed call {n} of {self.rules.timed}" if n > 0 else f"warm-up call {i + 1}"
                    times["kernel"].append(self.checked_call(kernel, what, "unstable"))
                for i in block:
                    inputs = self.draw(f"baseline {i}")
                    times["baseline"].append(baseline.call(inputs, f"baseline call {i}")[0])
        for part in ("kernel", "baseline"):
            self.supervisor.end(part)
        ours, eager = (times[part][self.rules.warmup :] for part in ("kernel", "baseline"))
        tenths = statistics.quantiles(ours, n=10)
        median, eager_median = statistics.median(ours), statistics.median(eager)
        return {
            "kernel_ms": median * 1e3,
            "kernel_p10_ms": tenths[0] * 1e3,
            "kernel_p90_ms": tenths[-1] * 1e3,
            "baseline_ms": eager_median * 1e3,
            "speedup": min(eager_median / median, self.rules.speedup_cap),
        }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection of the checker inside timed calls."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def blocks(warmup: int, timed: int, size: int = 10) -> Iterator[range]:
    """Call numbers in blocks: the warm-up first, then blocks of timed calls."""
    yield range(warmup)
    for start in range(warmup, warmup + timed, size):
        yield range(start, min(start + size, warmup + timed))


def pairs(pointers: int, most: int = 4) -> list[int]:
    """Codes of the ordered pairs of a launch's first tensors: 1 + 16 * source + destination."""
    count = min(pointers, most)
    return [1 + 16 * i + j for i in range(count) for j in range(count) if i != j]
