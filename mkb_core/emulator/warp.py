"""Exchange within a warp. PTX ISA sections 9.7.9.6 (shfl.sync), 9.7.13 (vote, match, redux, bar.warp, elect)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .decode import Execute, Scope, dtype_of, instruction, parts
from .errors import EmulatorError, UnsupportedInstruction
from .lanes import WARP, Lanes
from .records import Instruction

_U4 = np.dtype("u4")


@instruction("bar", "barrier")
def _bar_warp(item: Instruction, scope: Scope) -> Execute:
    """bar.warp.sync: the scheduler has already brought the lanes together."""
    return lambda lanes: None


def _source_lane(mode: str, lane: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """The lane that a lane reads from, and whether it is in range."""
    segment, clamp = (c >> 8) & 31, c & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    if mode == "up":
        return lane - b, lane - b >= high
    if mode == "down":
        return lane + b, lane + b <= high
    source = lane ^ b if mode == "bfly" else low | (b & ~segment & 31)
    return source, source <= high


@instruction("shfl")
def _shfl(item: Instruction, scope: Scope) -> Execute:
    """Read a register of another lane (up, down, bfly, idx); out of range, a lane reads its own."""
    sync, mode, kind = item.modifiers
    if sync != "sync" or mode not in ("up", "down", "bfly", "idx") or kind != "b32":
        raise UnsupportedInstruction(item.name)
    value = scope.read(item.operands[1], _U4)
    b, c = (scope.read(operand, _U4) for operand in item.operands[2:4])
    writes = [scope.write(part) for part in parts(item.operands[0])]

    def execute(lanes: Lanes) -> None:
        by, shape = b(lanes).astype(np.int64) & 31, c(lanes).astype(np.int64)
        source, valid = _source_lane(mode, lanes.lane, by, shape)
        source = lanes.number - lanes.lane + np.where(valid, source, lanes.lane)
        dead = valid & ~lanes.mask[source] & lanes.mask & lanes.alive[source]
        if not lanes.full and dead.any():
            where = lanes.where(int(np.argmax(dead)))
            what = f"{item.name} reads a lane that takes no part"
            raise EmulatorError(f"kernel {lanes.shape.kernel}, {where}: {what}")
        results = (lanes.expand(value(lanes))[source], valid)
        for write, result in zip(writes, results, strict=False):
            write(lanes, result)

    return execute


def _bits(flags: Any) -> Any:
    """Per warp the flags as a mask: shape (count,) -> (warps,), uint32."""
    bits = flags.reshape(-1, WARP).astype(np.uint64) << np.arange(WARP, dtype=np.uint64)
    return bits.sum(1).astype(np.uint32)


@instruction("vote")
def _vote(item: Instruction, scope: Scope) -> Execute:
    """all, any, uni or ballot of a predicate over the executing lanes of each warp."""
    mode, read, write = item.modifiers[-2], scope.predicate(item.operands[1]), scope.write(item.operands[0])
    if mode not in ("all", "any", "uni", "ballot"):
        raise UnsupportedInstruction(item.name)

    def execute(lanes: Lanes) -> None:
        flags = lanes.expand(read(lanes))
        yes, no = _bits(flags & lanes.mask), _bits(~flags & lanes.mask)
        results = {"all": no == 0, "any": yes != 0, "uni": (no == 0) | (yes == 0), "ballot": yes}
        write(lanes, np.repeat(results[mode], WARP))

    return execute


@instruction("match")
def _match(item: Instruction, scope: Scope) -> Execute:
    """The lanes with the same value (any), or all lanes where every value is equal (all)."""
    mode = item.modifiers[0] if item.modifiers[0] != "sync" else item.modifiers[1]
    mode = "any" if "any" in item.modifiers else mode
    read = scope.read(item.operands[1], dtype_of(item.modifiers[-1]))
    writes = [scope.write(part) for part in parts(item.operands[0])]

    def execute(lanes: Lanes) -> None:
        values, mask = lanes.expand(read(lanes)).reshape(-1, WARP), lanes.mask.reshape(-1, WARP)
        equal = (values[:, :, None] == values[:, None, :]) & mask[:, None, :]
        same = _bits(equal.reshape(-1, WARP))
        if mode != "any":
            whole = np.repeat(_bits(lanes.mask), WARP)
            same = np.where(same == whole, whole, np.uint32(0))
        for write, result in zip(writes, (same, same != 0), strict=False):
            write(lanes, result)

    return execute


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@instruction("redux")
def _redux(item: Instruction, scope: Scope) -> Execute:
    """Reduce an integer over the executing lanes of each warp."""
    dtype = dtype_of(item.modifiers[-1])
    function = _REDUCE[item.modifiers[1]]
    limits = np.iinfo(dtype)
    start = {"min": limits.max, "max": limits.min, "and": np.array(-1).astype(dtype)}.get(item.modifiers[1], 0)
    read, write = scope.read(item.operands[1], dtype), scope.write(item.operands[0])

    def execute(lanes: Lanes) -> None:
        values = np.where(lanes.mask, read(lanes), dtype.type(start)).reshape(-1, WARP)
        write(lanes, np.repeat(function.reduce(values, axis=1, dtype=dtype), WARP))

    return execute


@instruction("elect")
def _elect(item: Instruction, scope: Scope) -> Execute:
    """Choose the lowest executing lane of each warp."""
    number, chosen = (scope.write(part) for part in parts(item.operands[0]))

    def execute(lanes: Lanes) -> None:
        leader = np.repeat(np.argmax(lanes.mask.reshape(-1, WARP), axis=1), WARP)
        number(lanes, leader.astype(np.uint32))
        chosen(lanes, lanes.lane == leader)

    return execute
