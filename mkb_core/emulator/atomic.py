"""Atomic operations, one lane after the other. PTX ISA sections 9.7.13.15 (atom) and 9.7.13.16 (red)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import UNSIGNED, Execute, Scope, dtype_of, instruction
from .errors import UnsupportedInstruction
from .floating import bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16
from .lanes import Lanes
from .records import Instruction
from .transfer import gather, scatter, space_of

Update = Callable[..., Any]
_HALF = np.uint32(16)

_UPDATES: dict[str, Update] = {
    "add": lambda old, value: old + value,
    "min": np.fmin,
    "max": np.fmax,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "exch": lambda old, value: value,
    "cas": lambda old, compare, value: np.where(old == compare, value, old),
    "inc": lambda old, value: np.where(old >= value, 0, old + 1).astype(old.dtype),
    "dec": lambda old, value: np.where((old == 0) | (old > value), value, old - 1).astype(old.dtype),
}


def _packed_add(kind: str) -> Update:
    """Sum of 16-bit floats, given by their bits."""
    brain = kind.startswith("bf")
    widen, narrow = (bf16_to_f32, f32_to_bf16) if brain else (f16_to_f32, f32_to_f16)

    def one(a: Any, b: Any) -> Any:
        return narrow(widen(a.astype(np.uint16)) + widen(b.astype(np.uint16)))

    def two(a: Any, b: Any) -> Any:
        low, high = one(a & np.uint32(0xFFFF), b & np.uint32(0xFFFF)), one(a >> _HALF, b >> _HALF)
        return low.astype(np.uint32) | (high.astype(np.uint32) << _HALF)

    return two if kind.endswith("x2") else one


def _update(item: Instruction, name: str, kind: str) -> Update:
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        if name != "add":
            raise UnsupportedInstruction(item.name)
        return _packed_add(kind)
    return _UPDATES[name]


@instruction("atom", "red")
def _atom(item: Instruction, scope: Scope) -> Execute:
    """Read, change and write one value per lane; red gives no old value back."""
    kind = item.modifiers[-1]
    names = [m for m in item.modifiers[:-1] if m in _UPDATES]
    rest = tuple(m for m in item.modifiers[:-1] if m not in _UPDATES and m not in ("noftz", "acq_rel"))
    space = space_of(item, rest)
    if len(names) != 1 or any(m in ("v2", "v4", "v8") for m in rest):
        raise UnsupportedInstruction(item.name)
    dtype, update = dtype_of(kind), _update(item, names[0], kind)
    operands = item.operands if item.opcode == "red" else item.operands[1:]
    address = scope.address(operands[0])
    values = [scope.read(operand, dtype) for operand in operands[1 : 3 if names[0] == "cas" else 2]]
    write = scope.write(item.operands[0]) if item.opcode == "atom" else None
    raw = UNSIGNED[dtype.itemsize]

    def execute(lanes: Lanes) -> None:
        everyone, old = lanes.mask, np.zeros(lanes.count, raw)
        addresses, terms = lanes.expand(address(lanes)), [lanes.expand(read(lanes)) for read in values]
        for lane in np.flatnonzero(everyone):
            one = np.zeros(lanes.count, bool)
            one[lane] = True
            lanes.select(one)
            where = addresses[lane : lane + 1]
            before = gather(lanes, space, where, raw, 1, item.name).view(dtype)
            after = update(before, *(term[lane : lane + 1, None] for term in terms)).astype(dtype)
            scatter(lanes, space, where, np.ascontiguousarray(after).view(raw), item.name)
            old[lane] = before.view(raw)[0, 0]
        lanes.select(everyone)
        if write:
            write(lanes, old)

    return execute
