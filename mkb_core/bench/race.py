"""The timed part: kernel and baseline in alternating blocks on one clock, and tests that it was not fooled."""

import contextlib
import gc
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mkb_core.bench import wire
from mkb_core.bench.participant import Called, Participant, Rejected

if TYPE_CHECKING:
    from mkb_core.bench.checker import Checker

SETTLE = 1  # calls at the start of a block that are checked and not counted
BLOCK_BYTES = 16 << 30  # inputs and outputs of one block that the checker keeps
WINDOW_SECONDS, WINDOW_SHARE = 15e-6, 0.08  # what a closed window may be longer than the official time
IDLE_SECONDS = 400e-6  # a small operation takes 30-170 us; beside a kernel of another process about 1 ms
HELPER_SHARE = 0.2  # of the time of the calls: CPU time of threads that are not the main one


class Race:
    """Timed calls of one verdict."""

    def __init__(self, checker: "Checker", kernel: Participant, baseline: Participant) -> None:
        self.checker, self.kernel, self.baseline = checker, kernel, baseline
        self.ours: list[list[Called]] = []  # by block
        self.eager: list[list[Called]] = []
        self.nothing: list[Called] = []
        self.helper = 0.0
        self.idle: list[float] = []

    def run(self) -> dict[str, Any]:
        """All blocks; raises Rejected at the first wrong output, then for what the times show."""
        rules = self.checker.rules
        with quiet():
            for block in blocks(rules.warmup, rules.timed, self.size()):
                self.block(block)
            while self.unsure() and self.count() < rules.timed_most:
                start = rules.warmup + self.count()
                self.block(range(start, start + min(self.size(), rules.timed_most - self.count())))
        self.closed_window()
        self.background()
        return self.facts()

    def size(self, most: int = 10) -> int:
        """Calls of a block: as many as fit in the memory set aside."""
        return max(1, min(most, BLOCK_BYTES // max(1, self.checker.nbytes)))

    def count(self) -> int:
        """Timed calls so far."""
        return sum(map(len, self.ours))

    def block(self, numbers: range) -> None:
        """The same inputs through kernel and baseline; the checker's own kernels run before and after."""
        checker, warmup = self.checker, self.checker.rules.warmup
        draws = [checker.draw(f"timed {i}") for i in numbers]
        names = [f"timed call {i - warmup + 1}" if i >= warmup else f"warm-up call {i + 1}" for i in numbers]
        sides = (self.kernel_calls, self.eager_calls)
        if len(self.idle) % 2:  # one entry a block
            sides = sides[::-1]
        self.idle.append(checker.idle_seconds())
        done = {side: side(draws, names) for side in sides}
        self.kernel.unchanged(names[-1])
        called = done[self.kernel_calls]
        for draw, call, name in zip((draws[0], *draws), called, (names[0], *names), strict=True):
            checker.check(self.kernel, draw, call, name, "unstable")
        if numbers.start >= warmup:
            self.ours.append([timed(call) for call in called[SETTLE:]])
            self.eager.append(done[self.eager_calls])

    def kernel_calls(self, draws: list[Any], names: list[str]) -> list[Called]:
        """The kernel's side of a block; its first call pays for the switch of processes and is not counted."""
        before = self.checker.supervisor.helper_seconds("kernel")
        called = [self.kernel.call(d, n) for d, n in zip((draws[0], *draws), (names[0], *names), strict=True)]
        self.helper += self.checker.supervisor.helper_seconds("kernel") - before
        return called

    def eager_calls(self, draws: list[Any], names: list[str]) -> list[Called]:
        """The baseline's side; calls that do nothing among the others, under the same conditions."""
        called = []
        for i, (draw, name) in enumerate(zip((draws[0], *draws), (names[0], *names), strict=True)):
            called.append(timed(self.baseline.call(draw, f"baseline, {name}")))
            if i % 4 == 1:
                self.nothing.append(timed(self.baseline.call(draw, "a call that does nothing", wire.NOTHING)))
        return called[SETTLE:]

    def unsure(self) -> bool:
        """Whether the standard error of the blocks' mean speedup is still more than the protocol wants."""
        ratios = self.ratios()
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        return error / statistics.mean(ratios) > self.checker.rules.standard_error

    def ratios(self) -> list[float]:
        """Speedup of each block."""
        return [median(e) / median(o) for o, e in zip(self.ours, self.eager, strict=True)]

    def facts(self) -> dict[str, Any]:
        """Medians in milliseconds, and their spread."""
        ours, eager = ([c.seconds for block in side for c in block] for side in (self.ours, self.eager))
        tenths = statistics.quantiles(ours, n=10)
        kernel, baseline = statistics.median(ours), statistics.median(eager)
        return {
            "kernel_ms": kernel * 1e3,
            "kernel_p10_ms": tenths[0] * 1e3,
            "kernel_p90_ms": tenths[-1] * 1e3,
            "baseline_ms": baseline * 1e3,
            "nothing_ms": median(self.nothing) * 1e3,
            "speedup": min(baseline / kernel, self.checker.rules.speedup_cap),
            "timed": len(ours),
            "blocks": [round(r, 4) for r in self.ratios()],
        }

    def closed_window(self) -> None:
        """From ARM to the checker's copy nothing hides: all but the official time is what doing nothing takes."""
        outside = [c.window - c.seconds for block in self.ours for c in block]
        nothing = [c.window - c.seconds for c in self.nothing]
        # hidden work is in every call, a disturbance in some
        hidden = quarter(outside) - quarter(nothing)
        self.checker.facts["hidden_ms"] = hidden * 1e3
        official = statistics.median(c.seconds for block in self.ours for c in block)
        if hidden > WINDOW_SECONDS + WINDOW_SHARE * official:
            raise Rejected(
                "rule",
                f"rule `hidden-work`: {hidden * 1e6:.0f} us of work a call outside the timed part, which took "
                f"{official * 1e6:.0f} us; all work belongs between the call of solve and its return",
            )

    def background(self) -> None:
        """No other thread of the runner works during calls, and its device is idle between them."""
        total = sum(c.seconds for block in self.ours for c in block)
        if self.helper > 1e-3 + HELPER_SHARE * total:
            raise Rejected(
                "rule",
                f"rule `thread`: other threads used {self.helper * 1e3:.1f} ms of CPU during calls of "
                f"{total * 1e3:.1f} ms; solve does its work in its own thread",
            )
        if statistics.median(self.idle) > IDLE_SECONDS:
            self.checker.supervisor.end("kernel")
            if self.checker.idle_seconds() > IDLE_SECONDS:
                raise Rejected(
                    "infra", "the device stays busy after the kernel's process is gone: somebody uses it"
                )
            raise Rejected(
                "rule",
                f"rule `background`: the device was busy between calls (a small operation took "
                f"{statistics.median(self.idle) * 1e6:.0f} us); solve leaves nothing running",
            )


def timed(call: Called) -> Called:
    """The call without its outputs, which would fill the device's memory if every block's were kept."""
    return call._replace(outputs=())


def quarter(seconds: list[float]) -> float:
    """The lower quartile."""
    return statistics.quantiles(seconds, n=4)[0]


def median(calls: list[Called]) -> float:
    """Median seconds."""
    return statistics.median(c.seconds for c in calls)


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
    for first, last in ((0, warmup), (warmup, warmup + timed)):
        for start, stop in itertools.pairwise([*range(first, last, size), last]):
            yield range(start, stop)


def small_operation(torch: Any) -> float:
    """Seconds of the quickest of four small kernels of the calling process, with synchronisation."""
    value = torch.ones(1, device="cuda")
    best = float("inf")
    for _ in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        value.add_(1)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
