"""Integer arithmetic, logic and shifts. PTX ISA sections 9.7.1 (integer), 9.7.8 (logic and shift)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import UNSIGNED, Execute, Scope, dtype_of, instruction, only
from .errors import UnsupportedInstruction
from .lanes import Lanes
from .records import Instruction

Function = Callable[..., Any]
_U4 = np.dtype("u4")


def elementwise(item: Instruction, scope: Scope, function: Function, dtypes: list[np.dtype]) -> Execute:
    """Operand 0 = function(operands 1.., each read in its dtype)."""
    reads = [scope.read(operand, dtype) for operand, dtype in zip(item.operands[1:], dtypes, strict=True)]
    write = scope.write(item.operands[0])
    if len(reads) == 1:
        (one,) = reads
        return lambda lanes: write(lanes, function(one(lanes)))
    if len(reads) == 2:
        a, b = reads
        return lambda lanes: write(lanes, function(a(lanes), b(lanes)))
    return lambda lanes: write(lanes, function(*[read(lanes) for read in reads]))


def _same(item: Instruction, scope: Scope, function: Function) -> Execute:
    only(item)
    dtype = dtype_of(item.modifiers[-1])
    return elementwise(item, scope, function, [dtype] * (len(item.operands) - 1))


def _saturated(function: Function) -> Function:
    """The 32-bit signed result, clamped instead of wrapped."""
    limit = np.iinfo(np.int32)

    def clamped(*values: Any) -> Any:
        exact = function(*[value.astype(np.int64) for value in values])
        return np.clip(exact, limit.min, limit.max).astype(np.int32)

    return clamped


@instruction("add", "sub", family="int")
def _add(item: Instruction, scope: Scope) -> Execute:
    function: Function = operator.add if item.opcode == "add" else operator.sub
    if item.modifiers == ("sat", "s32"):
        return elementwise(item, scope, _saturated(function), [np.dtype("i4")] * 2)
    return _same(item, scope, function)


def wide(dtype: np.dtype) -> np.dtype:
    """The integer type of the same sign with twice the bytes."""
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def high_half(a: Any, b: Any, dtype: np.dtype) -> Any:
    """The upper half of the product."""
    if dtype.itemsize < 8:
        double = wide(dtype)
        return ((a.astype(double) * b.astype(double)) >> double.type(8 * dtype.itemsize)).astype(dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
    (xl, xh), (yl, yh) = (x & mask, x >> half), (y & mask, y >> half)
    middle = xh * yl + ((xl * yl) >> half)
    low = xl * yh + (middle & mask)
    out = xh * yh + (middle >> half) + (low >> half)
    if dtype.kind == "i":
        zero = np.uint64(0)
        out = out - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return out.astype(dtype)


@instruction("mul", "mad", "mul24", "mad24", family="int")
def _mul(item: Instruction, scope: Scope) -> Execute:
    """Product (lo, hi or wide), for mad plus the third operand."""
    only(item, "lo", "hi", "wide")
    dtype = dtype_of(item.modifiers[-1])
    mode, added = item.modifiers[0], item.opcode.startswith("mad")
    if item.opcode.endswith("24") and mode != "lo":
        raise UnsupportedInstruction(item.name)
    out = wide(dtype) if mode == "wide" else dtype
    if mode == "hi":
        product: Function = lambda a, b: high_half(a, b, dtype)  # noqa: E731
    elif mode == "wide":
        product = lambda a, b: a.astype(out) * b.astype(out)  # noqa: E731
    else:
        product = operator.mul
    function = (lambda a, b, c: product(a, b) + c) if added else product
    return elementwise(item, scope, function, [dtype, dtype, out] if added else [dtype, dtype])


def quotient(a: Any, b: Any) -> Any:
    """Integer division that rounds to zero; all bits set where the divisor is 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = a // safe
    if b.dtype.kind == "i":
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.array(-1).astype(b.dtype), floor.astype(b.dtype))


@instruction("div", "rem", family="int")
def _div(item: Instruction, scope: Scope) -> Execute:
    if item.opcode == "div":
        return _same(item, scope, quotient)
    return _same(item, scope, lambda a, b: a - quotient(a, b) * b)


@instruction("min", "max", family="int")
def _extremum(item: Instruction, scope: Scope) -> Execute:
    return _same(item, scope, np.minimum if item.opcode == "min" else np.maximum)


@instruction("neg", "abs", family="int")
def _sign(item: Instruction, scope: Scope) -> Execute:
    return _same(item, scope, operator.neg if item.opcode == "neg" else np.abs)


@instruction("and", "or", "xor")
def _logic(item: Instruction, scope: Scope) -> Execute:
    return _same(item, scope, {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[item.opcode])


@instruction("not", "cnot")
def _not(item: Instruction, scope: Scope) -> Execute:
    return _same(item, scope, operator.invert if item.opcode == "not" else (lambda a: (a == 0).astype(a.dtype)))


def shifted(value: Any, amount: Any, left: bool) -> Any:
    """Shift by 32-bit amounts; from the width on all bits are gone, or copies of the sign."""
    bits = value.dtype.itemsize * 8
    by = np.minimum(amount, np.uint32(bits - 1)).astype(value.dtype)
    out = value << by if left else value >> by
    if value.dtype.kind == "i" and not left:
        return out
    return np.where(amount >= bits, value.dtype.type(0), out)


@instruction("shl", "shr")
def _shift(item: Instruction, scope: Scope) -> Execute:
    only(item)
    left = item.opcode == "shl"
    return elementwise(item, scope, lambda a, n: shifted(a, n, left), [dtype_of(item.modifiers[-1]), _U4])


@instruction("shf")
def _funnel(item: Instruction, scope: Scope) -> Execute:
    """Shift a pair of registers; the amount wraps at 32 or clamps to it."""
    only(item, "l", "r", "wrap", "clamp")
    left, clamp = "l" in item.modifiers, "clamp" in item.modifiers

    def function(low: Any, high: Any, amount: Any) -> Any:
        n = (np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)).astype(np.uint64)
        pair = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        return ((pair << n) >> np.uint64(32) if left else pair >> n).astype(np.uint32)

    return elementwise(item, scope, function, [_U4] * 3)


def _field_mask(length: Any, dtype: np.dtype) -> Any:
    """The lowest `length` bits set."""
    ones = dtype.type((1 << 8 * dtype.itemsize) - 1)
    return shifted(np.full(np.shape(length), ones, dtype), length, left=True) ^ ones


@instruction("bfe")
def _bfe(item: Instruction, scope: Scope) -> Execute:
    """Extract a bit field; signed types extend its top bit."""
    only(item)
    dtype = dtype_of(item.modifiers[-1])
    bits, unsigned = 8 * dtype.itemsize, UNSIGNED[dtype.itemsize]

    def function(value: Any, start: Any, length: Any) -> Any:
        start, length = start & np.uint32(255), length & np.uint32(255)
        field = shifted(value, start, left=False).view(unsigned) & _field_mask(length, unsigned)
        if dtype.kind == "u":
            return field
        top = np.minimum(start + length - np.uint32(1), np.uint32(bits - 1))
        negative = (shifted(value.view(unsigned), top, left=False) & unsigned.type(1)).astype(bool) & (length > 0)
        return np.where(negative, field | ~_field_mask(length, unsigned), field)

    return elementwise(item, scope, function, [dtype, _U4, _U4])


@instruction("bfi")
def _bfi(item: Instruction, scope: Scope) -> Execute:
    """Insert a bit field of the first operand into the second."""
    only(item)
    dtype = dtype_of(item.modifiers[-1])

    def function(field: Any, base: Any, start: Any, length: Any) -> Any:
        start = start & np.uint32(255)
        mask = shifted(_field_mask(length & np.uint32(255), dtype), start, left=True)
        return (base & ~mask) | (shifted(field, start, left=True) & mask)

    return elementwise(item, scope, function, [dtype, dtype, _U4, _U4])


def bit_length(value: Any) -> Any:
    """Bits up to the highest one, 0 for 0, as uint32."""
    out, rest = np.zeros(np.shape(value), np.uint32), np.asarray(value).astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        more = rest >= (np.uint64(1) << np.uint64(step))
        out = out + np.where(more, np.uint32(step), np.uint32(0))
        rest = np.where(more, rest >> np.uint64(step), rest)
    return out + (rest > 0).astype(np.uint32)


def _reverse(value: Any) -> Any:
    out, one = value.dtype.type(0), value.dtype.type(1)
    for i in range(8 * value.dtype.itemsize):
        out = (out << one) | ((value >> value.dtype.type(i)) & one)
    return out


@instruction("popc", "clz", "brev", "bfind")
def _bits(item: Instruction, scope: Scope) -> Execute:
    only(item, "shiftamt")
    dtype = UNSIGNED[dtype_of(item.modifiers[-1]).itemsize]
    width = np.uint32(8 * dtype.itemsize)
    if item.opcode == "bfind" and item.modifiers[-1][0] != "u":
        raise UnsupportedInstruction(item.name)
    functions: dict[str, Function] = {
        "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
        "clz": lambda a: width - bit_length(a),
        "brev": _reverse,
        "bfind": lambda a: bit_length(a) - np.uint32(1),
    }
    function = functions[item.opcode]
    if "shiftamt" in item.modifiers:
        function = lambda a: np.where(a == 0, np.uint32(0xFFFFFFFF), width - bit_length(a))  # noqa: E731
    return elementwise(item, scope, function, [dtype])


@instruction("lop3")
def _lop3(item: Instruction, scope: Scope) -> Execute:
    """Any logic of three registers, by its truth table in the last operand."""
    if item.modifiers != ("b32",):
        raise UnsupportedInstruction(item.name)
    *reads, table = [scope.read(operand, _U4) for operand in item.operands[1:5]]
    write = scope.write(item.operands[0])

    def execute(lanes: Lanes) -> None:
        values, out = [read(lanes) for read in reads], np.uint32(0)
        truth = int(np.max(table(lanes)))
        for row in range(8):
            if truth >> row & 1:
                terms = [v if row >> (2 - i) & 1 else ~v for i, v in enumerate(values)]
                out = out | (terms[0] & terms[1] & terms[2])
        write(lanes, out)

    return execute


@instruction("sad")
def _sad(item: Instruction, scope: Scope) -> Execute:
    return _same(item, scope, lambda a, b, c: np.where(a > b, a - b, b - a) + c)
