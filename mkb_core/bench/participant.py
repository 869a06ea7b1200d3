"""One runner process as the checker sees it: arenas, counters, and a clock around each call."""

import os
import select
import socket
import time
from typing import Any, NamedTuple, NoReturn

from mkb_core.bench import wire
from mkb_core.bench.arena import arena_class, poison, typed
from mkb_core.bench.forkserver import receive, send
from mkb_core.bench.problems import Problem
from mkb_core.config import VerdictRules

SETS = 2  # arenas an input: the same pointer gets new contents, and the same contents a new pointer


class Rejected(Exception):
    """Ends a verdict: status and message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Called(NamedTuple):
    """One call: seconds from GO to DONE, and from ARM to the checker's copies; the report; those copies."""

    seconds: float
    window: float
    report: wire.Report
    outputs: tuple[Any, ...]


class Supervisor:
    """The checker's line to the process that starts and kills runners."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def ask(self, **request: str) -> dict[str, Any]:
        """The supervisor's answer to one request."""
        send(self.channel, dict(request))
        answer, _ = receive(self.channel)
        return answer or {}

    def start(self, part: str) -> socket.socket:
        """A channel to a fresh runner for this part of the verdict."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        send(self.channel, {"start": part}, (theirs.fileno(),))
        theirs.close()
        return ours

    def end(self, part: str, patience: float = 0.0) -> dict[str, Any]:
        """Kill a runner and all below it, unless it ends itself so soon; its exit code and what it printed."""
        return self.ask(end=part, patience=str(patience))

    def helper_seconds(self, part: str) -> float:
        """CPU seconds that the threads of a runner other than its main one have used."""
        return float(self.ask(threads=part).get("seconds", 0))


class Participant:
    """A runner process and what the checker shares with it."""

    def __init__(
        self,
        supervisor: Supervisor,
        part: str,
        problem: Problem,
        device: str,
        sample: tuple[Any, ...],
        outputs: Any,
        limits: VerdictRules,
    ) -> None:
        self.supervisor, self.part, self.device = supervisor, part, device
        self.limits, self.number, self.task, self.what = limits, 0, wire.CALL, "import"
        page_fd, paper_fd = wire.memory_file("page", 4096), wire.memory_file("report", wire.REPORT_BYTES)
        self.page, self.paper = wire.Page(page_fd), wire.Page(paper_fd, wire.REPORT_BYTES)
        make = arena_class(device)
        tensors = _tensors(sample)
        self.sets = [[make.create(t.numel() * t.element_size()) for t in tensors] for _ in range(SETS)]
        self.landing = [make.create(t.numel() * t.element_size()) for t in outputs]
        self.last: list[tuple[Any, ...] | None] = [None] * SETS  # what each set was last filled with
        self.outputs, self.problem = outputs, problem
        self.blank = [output.new_empty(output.shape) for output in outputs]
        for blank in self.blank:
            poison(_bytes(blank), dtype_name(blank))
        self.channel = supervisor.start(part)
        setup = {
            "function": "reference" if part == "baseline" else "solve",
            "suppressed": part == "policy",
            "device": device,
            "sets": SETS,
            "container": problem.container,
            "inputs": [_spec(t) for t in tensors],
            "outputs": [_spec(t) for t in outputs],
            "scalars": {str(i): v for i, v in enumerate(sample) if not hasattr(v, "data_ptr")},
        }
        arenas = [a for group in (*self.sets, self.landing) for a in group]
        send(self.channel, setup, (page_fd, paper_fd, *(a.fd for a in arenas)))
        for fd in (page_fd, paper_fd, *(a.fd for a in arenas)):
            os.close(fd)

    def loaded(self) -> None:
        """Wait until the submission is imported; raises Rejected where it is not."""
        if self.channel.recv(16) != b"ready":
            raise RuntimeError(f"a runner could not start: {self.supervisor.end(self.part)}")
        ready, _, _ = select.select([self.channel], [], [], self.limits.first_call_seconds)
        if not ready:
            self.too_long(self.limits.first_call_seconds)
        answer = self.channel.recv(16)
        if answer == b"":
            self.died()
        if answer != b"1":
            raise Rejected("build", f"kernel.py could not be imported: {self.report().text}")

    def call(self, inputs: tuple[Any, ...], what: str, task: int = wire.CALL) -> Called:
        """One call from filling the inputs to the checker's own copy of what came back."""
        self.begin(inputs, what, task)
        return self.finish()

    def begin(self, inputs: tuple[Any, ...], what: str, task: int = wire.CALL) -> None:
        """Fill, poison, ARM, GO. Inputs and poison are plain copies: kernels of the checker's own in between would
        make the GPU switch between processes."""
        self.number += 1
        self.what, words, n = what, self.page.words, self.number
        chosen = os.urandom(1)[0] % SETS
        self.last[chosen] = inputs
        for arena, value in zip(self.sets[chosen], _tensors(inputs), strict=True):
            typed(arena.bytes(), dtype_name(value), tuple(value.shape)).copy_(value)
        for arena, blank in zip(self.landing, self.blank, strict=True):
            arena.bytes().copy_(_bytes(blank))
        self.sync()
        words[wire.ARENA], words[wire.TASK] = chosen, task
        self.armed = time.perf_counter_ns()
        words[wire.ARM] = n
        self.wait(wire.ARMED, self.limits.call_seconds)
        self.started = time.perf_counter_ns()
        words[wire.GO] = n

    def finish(self) -> Called:
        """DONE, landing, and the checker's copy."""
        limit = self.limits.first_call_seconds if self.number == 1 else self.limits.call_seconds
        self.wait(wire.DONE, limit)
        done = time.perf_counter_ns()
        self.wait(wire.LANDED, self.limits.call_seconds)
        outputs = tuple(self.landed(i) for i in range(len(self.landing)))
        self.sync()
        window = time.perf_counter_ns() - self.armed
        report = self.report()
        if self.page.words[wire.STATUS] == wire.DEVICE_FAILED and report.text.startswith("needs a GPU"):
            raise Rejected("build", report.text)
        if self.page.words[wire.STATUS] == wire.RULE_BROKEN:
            raise Rejected("rule", f"{self.what}: {report.text}")
        if self.page.words[wire.STATUS] != wire.OK:
            raise Rejected("runtime", f"{self.what}: {report.text}")
        return Called((done - self.started) / 1e9, window / 1e9, report, outputs)

    def unchanged(self, what: str) -> None:
        """Raise Rejected where a set holds something else than it was last filled with, and may not."""
        names = [t.name for t in self.problem.inputs]
        for arenas, inputs in zip(self.sets, self.last, strict=True):
            for name, arena, value in zip(names, arenas, _tensors(inputs or ()), strict=False):
                if name not in self.problem.mutates and not bool((arena.bytes() == _bytes(value)).all()):
                    raise Rejected("spec", f"{what}: the call changed its input {name}")

    def landed(self, i: int) -> Any:
        """The checker's private copy of output i."""
        output = self.outputs[i]
        return typed(self.landing[i].bytes().clone(), dtype_name(output), tuple(output.shape))

    def report(self) -> wire.Report:
        """The runner's report, copied once and then read."""
        return wire.unpack(bytes(self.paper.map))

    def sync(self) -> None:
        """Wait for the checker's own device work."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def wait(self, word: int, limit: float) -> None:
        """Until the runner writes this call's number into `word`; raises Rejected when it dies or hangs."""
        words, n = self.page.words, self.number
        spins, deadline = 0, time.monotonic() + limit
        nap = 0 if self.device == "cuda" else 0.0003
        while words[word] != n:
            spins += 1
            if nap:
                time.sleep(nap)
            if spins % (64 if nap else 20000) == 0:
                if select.select([self.channel], [], [], 0)[0] and self.channel.recv(1) == b"":
                    self.died()
                if time.monotonic() > deadline:
                    self.too_long(limit)

    def died(self) -> NoReturn:
        """The process is gone."""
        facts = self.supervisor.end(self.part, patience=2.0)  # its own exit code says more than our SIGKILL
        code = facts.get("code")
        how = f"signal {-code}" if isinstance(code, int) and code < 0 else f"exit code {code}"
        printed = str(facts.get("printed") or "").strip()[-500:]
        text = facts.get("cause") or f"{self.what}: the process ended ({how})"
        raise Rejected("runtime", f"{text}; it last printed: {printed}" if printed else text)

    def too_long(self, limit: float) -> NoReturn:
        """The process hangs: kill it with everything below it."""
        self.supervisor.end(self.part)
        raise Rejected("timeout", f"{self.what} took longer than {limit:g} s; killed")


def dtype_name(tensor: Any) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")


def _tensors(inputs: tuple[Any, ...]) -> list[Any]:
    """The inputs that cross in arenas; numbers go with the setup."""
    return [value for value in inputs if hasattr(value, "data_ptr")]


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _spec(tensor: Any) -> dict[str, Any]:
    nbytes = tensor.numel() * tensor.element_size()
    return {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "nbytes": nbytes}
