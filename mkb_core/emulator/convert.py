"""Conversion between types. PTX ISA section 9.7.9.21 (cvt) and 9.7.9.22 (cvt.pack)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import FLOATS, Execute, Scope, dtype_of, instruction
from .errors import UnsupportedInstruction
from .floating import f32_to_bf16, f32_to_f16, flushed, reader, writer
from .lanes import Lanes
from .records import Instruction

_TO_INTEGER: dict[str, Callable[[Any], Any]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_KNOWN = {"rn", "rz", "rm", "rp", "rna", "ftz", "sat", "satfinite", "relu", *_TO_INTEGER}
_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_F4, _F8 = np.dtype("f4"), np.dtype("f8")


@instruction("cvt")
def _cvt(item: Instruction, scope: Scope) -> Execute:
    """Convert a value, or two f32 into a packed pair (the first becomes the upper half)."""
    *options, to, source = item.modifiers
    if not set(options) <= _KNOWN or source not in (*FLOATS, *_INTEGERS):
        raise UnsupportedInstruction(item.name)
    if to == "tf32":
        return _tf32(item, scope)
    if to in ("bf16x2", "f16x2") and source == "f32" and len(item.operands) == 3:
        return _pair(item, scope, to, set(options))
    if to.endswith("x2") or source.endswith("x2"):
        raise UnsupportedInstruction(item.name)
    if source in _INTEGERS:
        return _from_integer(item, scope, set(options), to, source)
    if to in _INTEGERS:
        return _to_integer(item, scope, set(options), to, source)
    return _between_floats(item, scope, set(options), to, source)


def _mode(options: set[str]) -> str:
    return next((m for m in ("rz", "rm", "rp") if m in options), "rn")


def _clamp(value: Any, options: set[str], largest: float) -> Any:
    """Apply .relu, .sat and .satfinite."""
    if "relu" in options:
        value = np.where(value < 0, value.dtype.type(0), value)
    if "sat" in options:
        value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1)).astype(value.dtype)
    return np.clip(value, -largest, largest).astype(value.dtype) if "satfinite" in options else value


def _pair(item: Instruction, scope: Scope, to: str, options: set[str]) -> Execute:
    mode = _mode(options)
    if mode in ("rm", "rp") or "ftz" in options:
        raise UnsupportedInstruction(item.name)
    high, low = (scope.read(operand, _F4) for operand in item.operands[1:])
    write = scope.write(item.operands[0])
    narrow, largest = (f32_to_bf16, 3.3895e38) if to == "bf16x2" else (f32_to_f16, 65504.0)

    def execute(lanes: Lanes) -> None:
        upper, lower = (
            narrow(_clamp(read(lanes), options, largest), mode).astype(np.uint32) for read in (high, low)
        )
        write(lanes, (upper << np.uint32(16)) | lower)

    return execute


def _from_integer(item: Instruction, scope: Scope, options: set[str], to: str, source: str) -> Execute:
    read = scope.read(item.operands[1], dtype_of(source))
    if to in _INTEGERS:
        write, target = scope.write(item.operands[0]), dtype_of(to)
        if "sat" not in options:
            return lambda lanes: write(lanes, read(lanes).astype(target))
        limits = np.iinfo(target)
        if source == "u64" or to == "u64":
            raise UnsupportedInstruction(item.name)
        return lambda lanes: write(
            lanes, np.clip(read(lanes).astype(np.int64), limits.min, limits.max).astype(target)
        )
    store = writer(scope, item.operands[0], to, _mode(options))
    # a 64-bit integer has more bits than a double: going through one would round twice
    exact: np.dtype = np.dtype("g") if source[1:] == "64" and to != "f64" else _F8
    return lambda lanes: store(lanes, _clamp(read(lanes).astype(exact), options, 3.5e38))


def _to_integer(item: Instruction, scope: Scope, options: set[str], to: str, source: str) -> Execute:
    """Round as told and clamp to the target's range; a NaN becomes 0."""
    integral = _TO_INTEGER[next(option for option in options if option in _TO_INTEGER)]
    read, write, target = reader(scope, item.operands[1], source), scope.write(item.operands[0]), dtype_of(to)
    limits = np.iinfo(target)
    flush = "ftz" in options

    def execute(lanes: Lanes) -> None:
        value = flushed(read(lanes)) if flush else read(lanes)
        value = np.nan_to_num(integral(value.astype(_F8)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        inside = np.clip(value, float(limits.min), np.nextafter(float(limits.max) + 1, 0))
        out = np.where(value >= float(limits.max), target.type(limits.max), inside.astype(target))
        write(lanes, out)

    return execute


def _between_floats(item: Instruction, scope: Scope, options: set[str], to: str, source: str) -> Execute:
    read, write = reader(scope, item.operands[1], source), writer(scope, item.operands[0], to, _mode(options))
    integral = next((_TO_INTEGER[option] for option in options if option in _TO_INTEGER), None)
    largest = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028234e38, "f64": 1.79e308}[to]
    flush = "ftz" in options

    def execute(lanes: Lanes) -> None:
        value = flushed(read(lanes)) if flush else read(lanes)
        if integral is not None:
            value = integral(value)
        if to == "f64":
            value = value.astype(_F8)
        write(lanes, _clamp(value, options, largest))

    return execute


def _tf32(item: Instruction, scope: Scope) -> Execute:
    """Round f32 to 10 bits of mantissa: to nearest, ties away (`rna`), to even (`rn`), or to zero."""
    read, write = scope.read(item.operands[1], np.dtype("u4")), scope.write(item.operands[0])
    away, zero = "rna" in item.modifiers, "rz" in item.modifiers

    def execute(lanes: Lanes) -> None:
        bits = read(lanes)
        finite = np.isfinite(bits.view(_F4))
        odd = (bits >> np.uint32(13)) & np.uint32(1)
        half = np.uint32(0x1000) if away else np.uint32(0) if zero else np.uint32(0xFFF) + odd
        write(lanes, np.where(finite, (bits + half) & np.uint32(0xFFFFE000), bits))

    return execute
