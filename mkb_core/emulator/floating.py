"""Floating point arithmetic. PTX ISA sections 9.7.3 (f32, f64), 9.7.4 (f16, bf16) and 9.7.5 (mixed).

16-bit types are computed in float32 and rounded once. A fused multiply-add of f32 is computed in float64 and then
rounded, which in very rare ties differs from the device in the last bit; so may the approximate functions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import Execute, Read, Scope, Write, dtype_of, instruction, only
from .lanes import Lanes
from .records import Instruction, Operand

_F4, _F8 = np.dtype("f4"), np.dtype("f8")
_HALF = np.uint32(16)
_LOW = np.uint32(0xFFFF)
_TINY = np.float32(2.0**-126)


def bf16_to_f32(bits: Any) -> Any:
    """Widen brain floats, given as uint16; exact."""
    return (bits.astype(np.uint32) << _HALF).view(_F4)


def f32_to_bf16(value: Any, mode: str = "rn") -> Any:
    """Round float32 to brain floats as uint16: to nearest, ties to even, or to zero (`rz`)."""
    bits = value.view(np.dtype("u4"))
    if mode == "rz":
        out = (bits >> _HALF).astype(np.uint16)
    else:
        even = (bits >> _HALF) & np.uint32(1)
        out = ((bits + np.uint32(0x7FFF) + even) >> _HALF).astype(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), out)


def f16_to_f32(bits: Any) -> Any:
    """Widen half floats, given as uint16; exact."""
    return bits.view(np.dtype("f2")).astype(_F4)


def f32_to_f16(value: Any, mode: str = "rn") -> Any:
    """Round float32 or float64 to half floats as uint16."""
    return np.asarray(rounded(value, np.dtype("f2"), mode))[()].view(np.dtype("u2"))


def rounded(exact: Any, dtype: np.dtype, mode: str = "rn") -> Any:
    """Convert to a narrower float in a rounding mode: rn, rz, rm or rp."""
    out = exact.astype(dtype)
    if mode == "rn" or exact.dtype == dtype:
        return out
    back, infinity = out.astype(exact.dtype), dtype.type(np.inf)
    if mode == "rm":
        return np.where(back > exact, np.nextafter(out, -infinity), out)
    if mode == "rp":
        return np.where(back < exact, np.nextafter(out, infinity), out)
    return np.where(np.abs(back) > np.abs(exact), np.nextafter(out, dtype.type(0)), out)


def flushed(value: Any) -> Any:
    """Subnormal float32 become zero of their sign (`.ftz`)."""
    if value.dtype != _F4:
        return value
    small = np.abs(value) < _TINY
    return np.where(small, np.copysign(np.float32(0), value), value) if small.any() else value


def _halves(read: Read, widen: Callable[[Any], Any]) -> Read:
    def both(lanes: Lanes) -> Any:
        bits = read(lanes)
        low, high = (bits & _LOW).astype(np.uint16), (bits >> _HALF).astype(np.uint16)
        return np.stack([widen(low), widen(high)], axis=-1)

    return both


def reader(scope: Scope, operand: Operand, kind: str) -> Read:
    """Read an operand in the type it is computed in: 16-bit floats as float32, pairs with an axis of 2."""
    read = scope.read(operand, np.dtype("u2") if kind == "f16" else dtype_of(kind))
    widen = bf16_to_f32 if kind.startswith("bf") else f16_to_f32
    if kind in ("f16", "bf16"):
        return lambda lanes: widen(read(lanes))
    return _halves(read, widen) if kind.endswith("x2") else read


def writer(scope: Scope, operand: Operand, kind: str, mode: str = "rn") -> Write:
    """Write a computed value in a float type, rounding it."""
    write = scope.write(operand)
    narrow = f32_to_bf16 if kind.startswith("bf") else f32_to_f16
    if kind in ("f32", "f64"):
        return lambda lanes, value: write(lanes, rounded(value, dtype_of(kind), mode))

    def pack(lanes: Lanes, value: Any) -> None:
        bits = narrow(rounded(value, _F4), mode).astype(np.uint32)
        write(lanes, bits[..., 0] | (bits[..., 1] << _HALF) if kind.endswith("x2") else bits.astype(np.uint16))

    return pack


def _float(item: Instruction, scope: Scope, function: Callable[..., Any], *, exact: bool = False) -> Execute:
    """Operand 0 = function(the others); `exact` computes f32 in float64 and rounds once."""
    only(item, "rn", "rz", "rm", "rp", "ftz", "sat", "approx", "full", "NaN", "relu", "noftz")
    kind = item.modifiers[-1]
    mode = next((m for m in item.modifiers if m in ("rz", "rm", "rp")), "rn")
    reads = [reader(scope, operand, kind) for operand in item.operands[1:]]
    write = writer(scope, item.operands[0], kind, mode)
    double = (exact or mode != "rn") and kind != "f64"
    flush, sat, relu = (
        "ftz" in item.modifiers and kind == "f32",
        "sat" in item.modifiers,
        "relu" in item.modifiers,
    )

    def execute(lanes: Lanes) -> None:
        values = [read(lanes) for read in reads]
        if flush:
            values = [flushed(value) for value in values]
        out = function(*([value.astype(_F8) for value in values] if double else values))
        if sat or relu:
            out = np.where(np.isnan(out), 0 if sat else out, np.clip(out, 0, 1 if sat else None)).astype(out.dtype)
        if flush:
            out = flushed(rounded(out, _F4, mode))
        write(lanes, out)

    return execute


@instruction("add", "sub", "mul", family="float")
def _arithmetic(item: Instruction, scope: Scope) -> Execute:
    return _float(item, scope, {"add": operator.add, "sub": operator.sub, "mul": operator.mul}[item.opcode])


@instruction("fma", "mad", family="float")
def _fma(item: Instruction, scope: Scope) -> Execute:
    return _float(item, scope, lambda a, b, c: a * b + c, exact=True)


@instruction("div", family="float")
def _div(item: Instruction, scope: Scope) -> Execute:
    return _float(item, scope, operator.truediv)


@instruction("min", "max", family="float")
def _extremum(item: Instruction, scope: Scope) -> Execute:
    """A number wins over a NaN, unless `.NaN`; up to three operands."""
    names = {
        ("min", False): np.fmin,
        ("max", False): np.fmax,
        ("min", True): np.minimum,
        ("max", True): np.maximum,
    }
    pick: Callable[[Any, Any], Any] = names[item.opcode, "NaN" in item.modifiers]
    return _float(item, scope, lambda a, b, c=None: pick(a, b) if c is None else pick(pick(a, b), c))


@instruction("neg", "abs", family="float")
def _sign(item: Instruction, scope: Scope) -> Execute:
    return _float(item, scope, operator.neg if item.opcode == "neg" else np.abs)


@instruction("copysign", family="float")
def _copysign(item: Instruction, scope: Scope) -> Execute:
    return _float(item, scope, lambda sign, size: np.copysign(size, sign))


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@instruction(*_FUNCTIONS, family="float")
def _function(item: Instruction, scope: Scope) -> Execute:
    """Square roots, reciprocals, powers, trigonometry: rounded from float64, closer than `.approx` asks."""
    return _float(item, scope, _FUNCTIONS[item.opcode], exact=True)


@instruction("testp", family="float")
def _testp(item: Instruction, scope: Scope) -> Execute:
    """Class of a number: finite, infinite, number, notanumber, normal, subnormal."""
    read, write = reader(scope, item.operands[1], item.modifiers[-1]), scope.write(item.operands[0])
    tiny = np.finfo(dtype_of(item.modifiers[-1])).tiny
    tests: dict[str, Callable[[Any], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < tiny),
    }
    test = tests[item.modifiers[0]]
    return lambda lanes: write(lanes, test(read(lanes)))
