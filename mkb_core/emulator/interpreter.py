"""Runs a decoded kernel: threads that share a program counter step together, the lowest counter first.

PTX ISA section 3.3 (independent threads), 9.7.13.1 (bar, barrier) and 9.7.13.2 (bar.warp.sync).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import Deadlock, EmulatorError, StepLimit
from .lanes import WARP, Lanes, Shape
from .memory import Banks, GlobalMemory
from .program import Kind, Program, Step

MAX_STEPS = 1_000_000
MAX_THREADS = 1024
MAX_SHARED = 232_448  # bytes per block on sm_90
_BATCH = 65_536  # lanes that run together; more only cost memory
_FAIR = 61  # every so many turns another counter than the lowest runs, or a spinning thread starves the rest


def launch(
    program: Program,
    shape: Shape,
    params: list[bytes],
    memory: GlobalMemory,
    *,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
) -> int:
    """Run a kernel; returns the steps, one per instruction of a group of threads.

    `params` holds the parameters' bytes in the order of the kernel's list. With a `seed` the warps of a block
    take turns in random order, which shows missing barriers; blocks run in batches, in the order of their index.

    Raises:
        EmulatorError: The launch is not possible, or the kernel failed; the message names it.
    """
    _check(program, shape)
    for array in program.constants:
        memory.add(array.ctypes.data, array.size)
    packed = b"".join(value.ljust(-(-len(value) // 16) * 16, b"\0") for value in params)
    rng = None if seed is None else np.random.default_rng(seed)
    width = -(-shape.threads // WARP) * WARP
    batch, steps = max(1, _BATCH // width), 0
    with np.errstate(all="ignore"):
        for first in range(0, shape.blocks, batch):
            lanes = Lanes(shape, first, min(batch, shape.blocks - first), program.registers)
            lanes.global_memory, lanes.params = memory, packed
            blocks = lanes.count // width
            lanes.shared = Banks(blocks, program.static_shared + shape.dynamic_shared)
            lanes.local = Banks(lanes.count if program.local else 0, program.local)
            steps += _Scheduler(program, lanes, rng, max_steps).run()
    return steps


def _check(program: Program, shape: Shape) -> None:
    shared = program.static_shared + shape.dynamic_shared
    where = f"launch of kernel {program.name}"
    if min(*shape.grid, *shape.block) < 1 or shape.grid[1] > 65_535 or shape.grid[2] > 65_535:
        raise EmulatorError(f"{where}: grid {shape.grid}, block {shape.block} is not possible")
    if shape.threads > MAX_THREADS or shape.block[2] > 64:
        raise EmulatorError(f"{where}: block {shape.block} has more than {MAX_THREADS} threads, or z above 64")
    if shared > MAX_SHARED:
        raise EmulatorError(f"{where}: {shared} bytes of shared memory, a block has {MAX_SHARED}")


class _Scheduler:
    """Who runs next: program counters, barriers, and lanes that wait for their warp."""

    def __init__(self, program: Program, lanes: Lanes, rng: Any, max_steps: int) -> None:
        self.program, self.lanes, self.rng, self.max_steps = program, lanes, rng, max_steps
        self.pc = np.zeros(lanes.count, np.int64)
        self.barrier = np.full(lanes.count, -1, np.int16)  # the barrier a lane waits at
        self.parked = np.zeros(lanes.count, bool)  # waits for its warp at the instruction it is at
        self.needed: dict[int, int] = {}  # threads that a counted barrier waits for
        self.arrived: dict[int, Any] = {}  # bar.arrive: threads that came and went on, per block
        self.turns = 0

    def run(self) -> int:
        while (picked := self._pick()) is not None:
            try:
                self._advance(*picked)
            except EmulatorError:
                raise
            except (ArithmeticError, TypeError, ValueError, IndexError, KeyError) as error:
                raise EmulatorError(f"kernel {self.program.name}: the emulator failed: {error!r}") from error
        return self.lanes.steps

    def _pick(self) -> tuple[int, Any] | None:
        """The next program counter and its lanes; None at the end."""
        ready = self.lanes.alive & (self.barrier < 0) & ~self.parked
        if not ready.any():
            if self.lanes.alive_count == 0:
                return None
            raise self._deadlock()
        self.turns += 1
        if self.rng is not None:
            warps = self.lanes.thread // WARP
            ready = ready & (warps == self.rng.choice(np.unique(warps[ready])))
        counters = self.pc[ready]
        lowest = int(counters.min())
        if self.turns % _FAIR == 0:
            others = np.unique(counters)
            lowest = int(others[self.turns // _FAIR % len(others)])
        return lowest, ready & (self.pc == lowest)

    def _deadlock(self) -> Deadlock:
        lanes = self.lanes
        lane = int(np.argmax(lanes.alive))
        step = self.program.steps[int(self.pc[lane]) - (self.barrier[lane] >= 0)]
        waiting = int(np.count_nonzero(lanes.alive))
        return Deadlock(
            f"kernel {self.program.name}: deadlock, {waiting} threads wait for others that never arrive; "
            f"{lanes.where(lane)} waits at {step.text}"
        )

    def _advance(self, at: int, base: Any) -> None:
        """Run the lanes of `base` from instruction `at` until they part, wait, or may meet others."""
        lanes, steps = self.lanes, self.program.steps
        lanes.select(base)
        whole = lanes.full
        while True:
            step = steps[at]
            lanes.steps += 1
            if lanes.steps > self.max_steps:
                name = self.program.name
                raise StepLimit(f"kernel {name}: not done after {self.max_steps} steps, at {step.text}")
            active = 1
            if step.guard is not None:
                active = lanes.select(base & step.guard(lanes))
            if step.kind is Kind.PLAIN:
                if active:
                    step.execute(lanes)
            elif (after := self._control(step, at, base, active, whole)) is None:
                return
            else:
                at = after - 1
            if step.guard is not None:
                lanes.select(base)
            at += 1
            if not whole and at in self.program.merges:
                self.pc[base] = at
                return

    def _control(self, step: Step, at: int, base: Any, active: int, whole: bool) -> int | None:
        """Act on an instruction that is not plain; the next instruction where `base` stays together."""
        lanes = self.lanes
        if not active:
            return at + 1
        if step.kind is Kind.BRANCH and (lanes.full if whole else bool((lanes.mask == base).all())):
            self.pc[base] = step.target
            return step.target if whole else None
        if step.kind is Kind.WARP and lanes.full:
            step.execute(lanes)
            return at + 1
        self.pc[base] = at + 1
        if step.kind is Kind.BRANCH:
            self.pc[lanes.mask] = step.target
        elif step.kind is Kind.EXIT:
            lanes.alive = lanes.alive & ~lanes.mask
            lanes.alive_count = int(np.count_nonzero(lanes.alive))
            self._release()
        elif step.kind is Kind.TRAP:
            raise EmulatorError(f"kernel {self.program.name}, {lanes.where(int(np.argmax(lanes.mask)))}: trap")
        elif step.kind is Kind.BARRIER:
            self._arrive(step)
        else:
            self._meet(step, at)
        return None

    def _meet(self, step: Step, at: int) -> None:
        """Run a warp-wide instruction in the warps whose named lanes all came; park the rest."""
        lanes = self.lanes
        here = lanes.mask | (self.parked & (self.pc == at))
        named = np.asarray(lanes.expand(step.numbers[0](lanes)), np.uint64)
        came = (here | ~lanes.alive).reshape(-1, WARP).astype(np.uint64) << np.arange(WARP, dtype=np.uint64)
        missing = named & ~np.repeat(came.sum(1, dtype=np.uint64), WARP)
        ready = here & (missing == 0)
        self.parked = (self.parked | here) & ~ready
        self.pc[here] = at
        if lanes.select(ready):
            step.execute(lanes)
            self.pc[ready] = at + 1

    def _arrive(self, step: Step) -> None:
        """Note who came to which barrier; warps may name different ones in one instruction."""
        lanes = self.lanes
        names, *counts = [lanes.expand(read(lanes)) for read in step.numbers] or [np.zeros(lanes.count, np.uint32)]
        for barrier in np.unique(names[lanes.mask]).tolist():
            here = lanes.mask & (names == barrier)
            if counts:
                self.needed[barrier] = int(counts[0][here][0])
            if "arrive" in step.text.split("."):
                self.arrived[barrier] = self.arrived.get(barrier, 0) + here.reshape(-1, lanes.width).sum(1)
            else:
                self.barrier[here] = barrier
        self._release()

    def _release(self) -> None:
        """Open the barriers at which everyone expected has arrived."""
        lanes = self.lanes
        for barrier in np.unique(self.barrier[self.barrier >= 0]):
            waits = (self.barrier == barrier).reshape(-1, lanes.width)
            extra = self.arrived.get(int(barrier), 0)
            if int(barrier) in self.needed:
                done = (waits.sum(1) + extra >= self.needed[int(barrier)]) & waits.any(1)
            else:
                done = (waits | ~lanes.alive.reshape(-1, lanes.width)).all(1)
            if done.any():
                self.barrier[np.repeat(done, lanes.width) & (self.barrier == barrier)] = -1
                if np.ndim(extra):
                    self.arrived[int(barrier)] = np.where(done, 0, extra)
