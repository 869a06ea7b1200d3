"""The state of all threads of a batch of blocks: one lane per thread, one array per register."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import MemoryFault
from .memory import AccessError, Banks, GlobalMemory

WARP = 32
MULTIPROCESSORS = 132
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """The launch: kernel name, grid and block in (x, y, z), dynamic shared memory in bytes."""

    kernel: str
    grid: Dim3
    block: Dim3
    dynamic_shared: int = 0

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]


def unflatten(index: Any, dims: Dim3) -> tuple[Any, Any, Any]:
    """The (x, y, z) of a linear index, x fastest; works on ints and arrays."""
    return index % dims[0], index // dims[0] % dims[1], index // (dims[0] * dims[1])


class Lanes:
    """Registers, masks and memories of the blocks `first .. first + blocks - 1`.

    A register holds an array of shape (count,), or a NumPy scalar where every lane has the same value. Lanes
    that pad a block to whole warps are dead from the start. `mask` holds the lanes that execute; `full` says that
    these are all lanes alive, so that results need no merging with old values.
    """

    def __init__(self, shape: Shape, first: int, blocks: int, registers: list[Any]) -> None:
        """`registers` are the start values; the memories are set by the interpreter."""
        self.shape, self.first = shape, first
        self.width = -(-shape.threads // WARP) * WARP
        self.count = blocks * self.width
        self.registers = list(registers)
        self.thread = np.tile(np.arange(self.width, dtype=np.int64), blocks)
        self.bank = np.repeat(np.arange(blocks, dtype=np.int64), self.width)
        self.lane = self.thread % WARP
        self.number = np.arange(self.count, dtype=np.int64)
        self.alive = self.thread < shape.threads
        self.alive_count = int(np.count_nonzero(self.alive))
        self.steps = 0
        self.global_memory: GlobalMemory
        self.shared: Banks
        self.local: Banks
        self.params = b""
        self._special: dict[str, Any] = {}
        self.select(self.alive)

    def select(self, mask: Any) -> int:
        """Make `mask` the executing lanes; returns how many they are."""
        self.mask = mask
        active = int(np.count_nonzero(mask))
        self.full = active == self.alive_count
        self._index: Any = slice(None) if active == self.count else None
        return active

    @property
    def index(self) -> Any:
        """What picks the executing lanes out of an array: a slice for all, else their numbers."""
        if self._index is None:
            self._index = np.flatnonzero(self.mask)
        return self._index

    def expand(self, value: Any) -> Any:
        """The value as an array of shape (count,)."""
        return value if np.ndim(value) else np.broadcast_to(value, (self.count,))

    def picked(self, value: Any) -> Any:
        """The value of the executing lanes, shape (active,)."""
        return self.expand(value)[self.index]

    def spread(self, values: Any) -> Any:
        """The inverse of `picked`: shape (active,) -> (count,), zero elsewhere."""
        if isinstance(self.index, slice):
            return values
        out = np.zeros(self.count, values.dtype)
        out[self.index] = values
        return out

    def assign(self, slot: int, value: Any) -> None:
        """Write a register in the executing lanes."""
        self.registers[slot] = value if self.full else np.where(self.mask, value, self.registers[slot])

    def special(self, name: str) -> Any:
        """A special register such as `%tid.x` (PTX ISA chapter 10), uint32 or uint64."""
        if name in ("%clock", "%clock64", "%globaltimer", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"):
            return np.uint64(self.steps) if name in ("%clock64", "%globaltimer") else np.uint32(self.steps)
        if name not in self._special:
            self._special[name] = self._make_special(name)
        return self._special[name]

    def _make_special(self, name: str) -> Any:
        stem, _, axis = name[1:].partition(".")
        if stem in ("tid", "ctaid"):
            linear, dims = (
                (np.minimum(self.thread, self.shape.threads - 1), self.shape.block)
                if stem == "tid"
                else (self.bank + self.first, self.shape.grid)
            )
            return np.asarray(unflatten(linear, dims)["xyz".index(axis)], np.uint32)
        if stem in ("ntid", "nctaid"):
            dims = self.shape.block if stem == "ntid" else self.shape.grid
            return np.uint32(dims["xyz".index(axis)])
        if stem.startswith("lanemask_"):
            return self._lane_mask(stem[9:])
        simple = {
            "laneid": self.lane,
            "warpid": self.thread // WARP,
            "smid": (self.bank + self.first) % MULTIPROCESSORS,
            "nsmid": MULTIPROCESSORS,
            "nwarpid": 64,
            "gridid": 0,
            "dynamic_smem_size": self.shape.dynamic_shared,
        }
        return np.asarray(simple[stem], np.uint32)[()]

    def _lane_mask(self, relation: str) -> Any:
        bit = np.uint64(1) << self.lane.astype(np.uint64)
        masks = {"eq": bit, "lt": bit - 1, "le": 2 * bit - 1, "gt": -(2 * bit), "ge": -bit}
        return (masks[relation] & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def where(self, lane: int) -> str:
        """Names a lane for a message: `block (x, y, z) thread (x, y, z)`."""
        block = unflatten(self.first + int(self.bank[lane]), self.shape.grid)
        thread = unflatten(int(self.thread[lane]), self.shape.block)
        return f"block {block} thread {thread}"

    def fault(self, error: AccessError, what: str) -> MemoryFault:
        """The fault to raise for a refused access of the executing lanes."""
        lane = int(self.number[self.index][error.position])
        return MemoryFault(f"kernel {self.shape.kernel}, {self.where(lane)}: {what}: {error}")
