"""The trusted process: seeds, inputs, reference, anchor, clock, verdict. It never imports a submission."""

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from mkb_core.bench import wire
from mkb_core.bench.accuracy import compare, diagnose, promote
from mkb_core.bench.forkserver import send
from mkb_core.bench.gpu import GpuState, fault, ours, probe, read_loaded_state, read_state
from mkb_core.bench.participant import Called, Participant, Rejected, Supervisor, dtype_name
from mkb_core.bench.policy import Untimed
from mkb_core.bench.problems import constants, edges, get_problem, load_reference
from mkb_core.bench.race import Race, small_operation
from mkb_core.bench.runner import eager_settings
from mkb_core.bench.turn import Turn
from mkb_core.config import VerdictRules, protocol

SIDE_BY_SIDE_BYTES = 4 << 30  # of inputs and outputs; every runner has arenas for two sets of inputs


def preload(dsl: str, device: str) -> None:
    """What the fork server imports once."""
    import torch  # noqa: F401


def main(channel: socket.socket, message: dict[str, Any], context: None) -> None:
    """Judge one submission and send the facts of the verdict to the supervisor."""
    eager_settings()
    checker = Checker(Supervisor(channel), message)
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
        self.timed = self.device == "cuda"
        self.turn = Turn(self.device)
        self.problem = get_problem(job["problem"])
        self.module = load_reference(self.problem)
        self.constants = constants(self.module, job["workload"])
        self.seed: int = job["seed"]
        self.rules = VerdictRules.model_validate(job["rules"])
        self.row = (0, 0.0)  # of the worst output so far: rows over, worst row's ratio
        self.facts: dict[str, Any] = {"draws": 0, "error_ratio": 0.0, "phases": {}}
        if self.timed:
            self.facts["gpu"] = torch.cuda.get_device_name()

    def judge(self) -> dict[str, Any]:
        """Correctness draws, the untimed runs, then the timed calls; raises Rejected at the first fault."""
        self.turn.share()
        self.healthy("before")
        with self.phase("reference"):
            self.sample = self.draw("shape")
            self.outputs = self.reference(self.sample)
        with self.phase("load"):
            kernel = self.participant("kernel")
            runs = self.untimed_runs() if self.side_by_side() else None
            for part in (kernel, *(runs.parts if runs else ())):
                part.loaded()
        with self.phase("compile"):
            inputs = self.draw("kernel 0")
            kernel.begin(inputs, f"draw 1 of {self.rules.draws}")
            if runs:
                runs.begin()
            first = kernel.finish()
        with self.phase("draws"):
            self.check(kernel, inputs, first, f"draw 1 of {self.rules.draws}", "value")
            self.correctness(kernel)
        with self.phase("policy"):
            runs = runs or self.untimed_runs().started()
            runs.run()
        return self.measure(kernel, runs) if self.timed else {}

    @property
    def nbytes(self) -> int:
        """Bytes of one draw's inputs and outputs."""
        return sum(t.nbytes for t in (*self.sample, *self.outputs) if hasattr(t, "nbytes"))

    def side_by_side(self) -> bool:
        """Whether the untimed runs start with the kernel's: on a GPU host's many cores, if memory is no matter."""
        return self.timed and self.nbytes < SIDE_BY_SIDE_BYTES

    def untimed_runs(self) -> Untimed:
        """The suppressed and the fresh run, each in a process of its own."""
        return Untimed(self, self.participant("policy"), self.participant("fresh"))

    def correctness(self, kernel: Participant) -> None:
        """The other random draws, the problem's edge draws, and inputs that differ in one element."""
        for i in range(1, self.rules.draws):
            self.checked_call(kernel, f"draw {i + 1} of {self.rules.draws}", "value")
        for name in edges(self.module):
            self.edge_call(kernel, name)
        self.changed_elements(kernel)

    def measure(self, kernel: Participant, runs: Untimed) -> dict[str, Any]:
        """The timed part, alone on the GPU, between two looks at its state."""
        with self.phase("baseline"):
            baseline = self.participant("baseline")
            baseline.loaded()
        with self.phase("waiting"):
            self.turn.alone()
        with self.phase("timing"):
            before = self.steady(read_state)
            facts = Race(self, kernel, baseline).run()
            after = self.steady(read_loaded_state)
        runs.again.agrees(facts["kernel_ms"] / 1e3)
        self.healthy("after")
        dirty = fault(before, after)
        if dirty:
            raise Rejected("infra", f"the GPU is not fit to be measured on: {dirty}")
        states = {"gpu_before": before, "gpu_after": after}
        return facts | {key: state.model_dump() for key, state in states.items() if state}

    def steady(self, read: Callable[[set[int]], GpuState | None]) -> GpuState | None:
        """A reading of the GPU; again where it shows a fault, as processes that just come or go look like one."""
        for _ in range(5):
            state = read(ours())
            if not fault(state, state):
                break
            time.sleep(0.2)
        return state

    def healthy(self, when: str) -> None:
        """Raises Rejected `infra` where the device itself computes wrongly or not at all."""
        illness = probe() if self.timed else ""
        if illness:
            raise Rejected("infra", f"the GPU is not well {when} the verdict: {illness}")

    def changed_elements(self, kernel: Participant) -> None:
        """The same inputs again, with one element of one of them changed each time: a fingerprint misses it."""
        before = self.draw("changed")
        self.call(kernel, before, "draw before a change", "value")
        for i, value in enumerate(before):
            name = self.problem.inputs[i].name
            free = getattr(value, "is_floating_point", bool)() and value.element_size() > 1
            if free and name not in self.problem.constrained:
                after = tuple(v.clone() if k == i else v for k, v in enumerate(before))
                flat = after[i].view(-1)
                at = int(self.torch.randint(flat.numel(), (1,)))
                flat[at] = -flat.abs().max() if flat[at] >= 0 else flat.abs().max()
                self.call(kernel, after, f"the same inputs with one element of {name} changed", "value")

    def edge_call(self, kernel: Participant, name: str) -> None:
        """One call on inputs that the problem declares legal and a random draw never shows."""
        self.seed_of(f"edge {name}")
        inputs = tuple(self.module.make_edge(name, self.constants, self.torch_device))
        self.call(kernel, inputs, f"edge draw {name!r} ({self.module.EDGES[name]})", "value")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note the seconds of one part of the verdict, also where it ends the verdict."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.facts["phases"][name] = round(time.monotonic() - started, 3)

    def participant(self, part: str) -> Participant:
        """A fresh runner process."""
        return Participant(
            self.supervisor, part, self.problem, self.torch_device, self.sample, self.outputs, self.rules
        )

    @property
    def torch_device(self) -> str:
        """Where tensors live."""
        return "cuda" if self.timed else "cpu"

    def idle_seconds(self) -> float:
        """Seconds of a small operation of the checker's own; long where another process keeps the device busy."""
        return small_operation(self.torch) if self.timed else 0.0

    def draw(self, what: str) -> tuple[Any, ...]:
        """Fresh inputs; the seed is a function of the verdict's secret seed and the name of the call."""
        self.seed_of(what)
        return tuple(self.module.make_inputs(self.constants, self.torch_device))

    def seed_of(self, what: str) -> None:
        """Set the generator's seed for one draw."""
        digest = hashlib.sha256(f"{self.seed}:{what}".encode()).digest()
        self.torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def reference(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The reference's outputs as a tuple, whatever its container; inputs are cloned where it may write."""
        given = tuple(v.clone() if hasattr(v, "clone") else v for v in inputs) if self.problem.mutates else inputs
        with self.torch.no_grad():
            result = self.module.reference(*given)
        return (result,) if isinstance(result, self.torch.Tensor) else tuple(result)

    def checked_call(self, kernel: Participant, what: str, status: str) -> Called:
        """One call on fresh inputs whose outputs must be right."""
        return self.call(kernel, self.draw(f"{kernel.part} {kernel.number}"), what, status)

    def call(self, kernel: Participant, inputs: tuple[Any, ...], what: str, status: str) -> Called:
        """One call on these inputs whose outputs must be right."""
        called = kernel.call(inputs, what)
        self.check(kernel, inputs, called, what, status)
        return called

    def check(self, kernel: Participant, inputs: tuple[Any, ...], called: Called, what: str, status: str) -> None:
        """Raises Rejected unless the call launched a kernel of the DSL, kept its inputs and is right."""
        if called.report.launches == 0:
            raise Rejected("bypass", f"{what}: no kernel of the DSL was launched; every call must run one")
        self.specification(called.report, kernel.outputs, what)
        kernel.unchanged(what)
        wrong, ratio = self.fault(inputs, called.outputs)
        if not wrong:
            self.facts["rows_over"], self.facts["row_ratio"] = self.row
        self.facts["draws"] += 1
        self.facts["error_ratio"] = max(self.facts["error_ratio"], min(ratio, 1e30))
        if wrong:
            raise Rejected(status, f"{what}: {wrong}")

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

    def fault(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[str, float]:
        """What is wrong with the outputs (empty: nothing), and the worst error over its allowance.

        Rows that are wrong for their own scale, though a larger row hides them, are noted beside it.
        """
        reference, anchor = self.reference(inputs), self.reference(promote(inputs))
        worst = 0.0
        for i, spec in enumerate(self.problem.outputs):
            result = compare(outputs[i], reference[i], anchor[i], protocol().accuracy.factor)
            worst = max(worst, result.ratio)
            if not result.ok:
                names = [t.name for t in self.problem.inputs]
                cause = diagnose(outputs[i], reference[i], dict(zip(names, inputs, strict=False)))
                return f"{spec.name}: {result.message}" + f" ({cause})" * bool(cause), worst
            self.row = max(self.row, (result.rows_over, result.row_ratio))
        return "", worst

    def rescaled(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Each floating output as the line a * output + b closest to the anchor; None where one is not finite."""
        lines = []
        for output, exact in zip(outputs, self.reference(promote(inputs)), strict=True):
            x, y = output.double().flatten(), exact.double().flatten()
            if not output.dtype.is_floating_point or not bool(x.isfinite().all() & y.isfinite().all()):
                return None
            dx, dy = x - x.mean(), y - y.mean()
            slope = (dx * dy).sum() / (dx * dx).sum()
            lines.append((y.mean() + slope * dx).to(output.dtype).reshape(output.shape))
        return tuple(lines)
