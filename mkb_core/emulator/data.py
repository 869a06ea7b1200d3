"""Moves, selection and comparison: mov, cvta, selp, slct, setp, set, isspacep, prmt; and what has no effect here.

PTX ISA sections 9.7.6 (comparison and selection) and 9.7.9 (data movement and conversion).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import FLOATS, UNSIGNED, Execute, Read, Scope, dtype_of, instruction, only, parts
from .errors import EmulatorError, UnsupportedInstruction
from .floating import reader
from .lanes import Lanes
from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from .records import Instruction, Symbol, Vector

_WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
_U4 = np.dtype("u4")


@instruction("mov")
def _mov(item: Instruction, scope: Scope) -> Execute:
    """Copy, or pack and unpack a brace list (low element first)."""
    only(item)
    target, source = item.operands
    dtype = dtype_of(item.modifiers[-1])
    if isinstance(target, Vector):
        return _unpack(target, scope.read(source, dtype), dtype, scope)
    if isinstance(source, Vector):
        return _pack(scope, target, source, dtype)
    read, write = scope.read(source, dtype), scope.write(target)
    return lambda lanes: write(lanes, read(lanes))


def _unpack(target: Vector, read: Read, dtype: np.dtype, scope: Scope) -> Execute:
    width = dtype.itemsize // len(target.parts)
    piece = UNSIGNED[width]
    writes = [(scope.write(part), dtype.type(8 * width * i)) for i, part in enumerate(target.parts)]

    def execute(lanes: Lanes) -> None:
        value = read(lanes)
        for write, shift in writes:
            write(lanes, (value >> shift).astype(piece))

    return execute


def _pack(scope: Scope, target: Any, source: Vector, dtype: np.dtype) -> Execute:
    width = dtype.itemsize // len(source.parts)
    reads = [(scope.read(p, UNSIGNED[width]), dtype.type(8 * width * i)) for i, p in enumerate(source.parts)]
    write = scope.write(target)

    def execute(lanes: Lanes) -> None:
        value: Any = dtype.type(0)
        for read, shift in reads:
            value = value | (read(lanes).astype(dtype) << shift)
        write(lanes, value)

    return execute


@instruction("cvta")
def _cvta(item: Instruction, scope: Scope) -> Execute:
    """Between an address in its space and a generic one."""
    window = next((w for space, w in _WINDOWS.items() if space in item.modifiers), 0)
    if "param" in item.modifiers:
        window = 0  # names of parameters already stand for generic addresses
    delta = np.int64(-window if "to" in item.modifiers else window)
    read, write = scope.read(item.operands[1], np.dtype("i8")), scope.write(item.operands[0])
    return lambda lanes: write(lanes, read(lanes) + delta)


@instruction("isspacep")
def _isspacep(item: Instruction, scope: Scope) -> Execute:
    """Whether a generic address lies in a state space."""
    space = item.modifiers[0].split("::")[0]
    low = _WINDOWS.get(space, 0)
    high = {"shared": LOCAL_WINDOW, "local": PARAM_WINDOW}.get(space, 1 << 63) if low else SHARED_WINDOW
    read, write = scope.read(item.operands[1], np.dtype("u8")), scope.write(item.operands[0])
    return lambda lanes: write(lanes, (read(lanes) >= np.uint64(low)) & (read(lanes) < np.uint64(high)))


@instruction("selp")
def _selp(item: Instruction, scope: Scope) -> Execute:
    """Choose by a predicate."""
    only(item)
    dtype = dtype_of(item.modifiers[-1])
    a, b = (scope.read(operand, dtype) for operand in item.operands[1:3])
    choose, write = scope.predicate(item.operands[3]), scope.write(item.operands[0])
    return lambda lanes: write(lanes, np.where(choose(lanes), a(lanes), b(lanes)))


@instruction("slct")
def _slct(item: Instruction, scope: Scope) -> Execute:
    """Choose by the sign of the third operand."""
    only(item, "ftz", item.modifiers[-2])
    dtype, by = dtype_of(item.modifiers[-2]), dtype_of(item.modifiers[-1])
    a, b = (scope.read(operand, dtype) for operand in item.operands[1:3])
    choose, write = scope.read(item.operands[3], by), scope.write(item.operands[0])
    return lambda lanes: write(lanes, np.where(choose(lanes) >= 0, a(lanes), b(lanes)))


def _nan(a: Any, b: Any) -> Any:
    return np.isnan(a) | np.isnan(b)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
    "equ": lambda a, b: (a == b) | _nan(a, b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~_nan(a, b),
    "nan": _nan,
}
_COMBINE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def _comparison(item: Instruction, scope: Scope, kind: str) -> tuple[Read, Read | None, Any]:
    """The comparison of operands 1 and 2, and what combines it with the predicate operand 3."""
    compare = _COMPARE[item.modifiers[0]]
    if item.modifiers[0] == "ne" and kind in FLOATS:
        compare = lambda a, b: (a != b) & ~_nan(a, b)  # noqa: E731  the ordered form: false for a NaN
    if kind.endswith("x2"):
        raise UnsupportedInstruction(item.name)
    a, b = (reader(scope, operand, kind) for operand in item.operands[1:3])
    combine = next((_COMBINE[m] for m in item.modifiers[1:] if m in _COMBINE), None)
    other = scope.predicate(item.operands[3]) if combine else None
    return (lambda lanes: compare(a(lanes), b(lanes))), other, combine


@instruction("setp")
def _setp(item: Instruction, scope: Scope) -> Execute:
    """Compare into a predicate, or into a pair: the result and its opposite."""
    result, other, combine = _comparison(item, scope, item.modifiers[-1])
    writes = [scope.write(part) for part in parts(item.operands[0])]

    def execute(lanes: Lanes) -> None:
        truth = result(lanes)
        third = other(lanes) if other else None
        for write, value in zip(writes, (truth, ~truth), strict=False):
            write(lanes, combine(value, third) if combine else value)

    return execute


@instruction("set")
def _set(item: Instruction, scope: Scope) -> Execute:
    """Compare into a register: all bits set or 1.0 for true."""
    kind, dtype = item.modifiers[-1], dtype_of(item.modifiers[-2])
    result, other, combine = _comparison(item, scope, kind)
    if item.modifiers[-2] not in ("u32", "s32", "f32"):
        raise UnsupportedInstruction(item.name)
    true, false = (dtype.type(1.0 if dtype.kind == "f" else np.array(-1).astype(dtype)), dtype.type(0))
    write = scope.write(item.operands[0])

    def execute(lanes: Lanes) -> None:
        truth = result(lanes)
        write(lanes, np.where(combine(truth, other(lanes)) if combine and other else truth, true, false))

    return execute


@instruction("prmt")
def _prmt(item: Instruction, scope: Scope) -> Execute:
    """Pick four of the eight bytes of two registers; bit 3 of a selector spreads the byte's sign."""
    if item.modifiers != ("b32",):
        raise UnsupportedInstruction(item.name)
    a, b, select = (scope.read(operand, _U4) for operand in item.operands[1:4])
    write = scope.write(item.operands[0])

    def execute(lanes: Lanes) -> None:
        both = a(lanes).astype(np.uint64) | (b(lanes).astype(np.uint64) << np.uint64(32))
        out: Any = np.uint32(0)
        for i in range(4):
            pick = (select(lanes) >> np.uint32(4 * i)) & np.uint32(15)
            byte = (both >> ((pick & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint8)
            sign = np.where(byte >= 128, np.uint8(255), np.uint8(0))
            out = out | (np.where(pick & np.uint32(8), sign, byte).astype(np.uint32) << np.uint32(8 * i))
        write(lanes, out)

    return execute


@instruction("membar", "fence", "prefetch", "prefetchu", "discard", "applypriority", "nanosleep", "pragma")
@instruction("griddepcontrol", "setmaxnreg", "brkpt", "pmevent")
def _no_effect(item: Instruction, scope: Scope) -> Execute:
    """Ordering, caching and hints: the emulated memory is in order, and nothing is timed."""
    return lambda lanes: None


@instruction("createpolicy")
def _createpolicy(item: Instruction, scope: Scope) -> Execute:
    """A cache policy is a number that nothing here reads."""
    write = scope.write(item.operands[0])
    return lambda lanes: write(lanes, np.uint64(0))


@instruction("activemask")
def _activemask(item: Instruction, scope: Scope) -> Execute:
    """The lanes of the warp that execute."""
    write = scope.write(item.operands[0])

    def execute(lanes: Lanes) -> None:
        bits = lanes.mask.reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
        write(lanes, np.repeat(bits.sum(1), 32).astype(np.uint32))

    return execute


@instruction("call")
def _call(item: Instruction, scope: Scope) -> Execute:
    """Of the functions only printf (ignored) and a failed assertion are known."""
    names = {operand.name for operand in item.operands if isinstance(operand, Symbol)}
    if "vprintf" in names:
        return lambda lanes: None
    if "__assertfail" not in names:
        raise UnsupportedInstruction(f"{item.name} {' '.join(sorted(names))}")

    def execute(lanes: Lanes) -> None:
        where = lanes.where(int(np.argmax(lanes.mask)))
        raise EmulatorError(f"kernel {lanes.shape.kernel}, {where}: an assertion failed")

    return execute
