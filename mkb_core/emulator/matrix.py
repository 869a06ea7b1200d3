"""Warp-wide matrix fragments. PTX ISA section 9.7.15.4 and .5 (mma.sync, ldmatrix, stmatrix; layouts there).

Products are summed in float32 (float64 for integers) in NumPy's order, so the last bit may differ from the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import Execute, Read, Scope, instruction, parts
from .errors import UnsupportedInstruction
from .floating import bf16_to_f32, f16_to_f32, f32_to_f16
from .lanes import WARP, Lanes
from .records import Instruction, Operand
from .transfer import gather, scatter

_U4 = np.dtype("u4")
_GROUP, _MEMBER = np.arange(WARP) >> 2, np.arange(WARP) & 3
_WIDEN: dict[str, tuple[int, Callable[[Any], Any]]] = {  # element type: bits, how its bits become a number
    "bf16": (16, bf16_to_f32),
    "f16": (16, f16_to_f32),
    "tf32": (32, lambda bits: (bits & np.uint32(0xFFFFE000)).view(np.float32)),
    "s8": (8, lambda bits: bits.view(np.int8).astype(np.float64)),
    "u8": (8, lambda bits: bits.astype(np.float64)),
}
_SHAPES = {16: (8, 16), 32: (4, 8), 8: (16, 32)}  # element bits: the k of m16n8k*


def _elements(lanes: Lanes, read: Read, bits: int, widen: Callable[[Any], Any]) -> Any:
    """A register's elements, low first: shape (warps, 32, elements)."""
    word = np.ascontiguousarray(lanes.expand(read(lanes))).astype(np.uint32)
    return widen(word.view(f"u{bits // 8}")).reshape(-1, WARP, 32 // bits)


def _operand(lanes: Lanes, reads: list[Read], kind: str, rows: int, depth: int) -> Any:
    """Matrix A (rows 16) or B transposed (rows 8) from its fragments: shape (warps, rows, k)."""
    bits, widen = _WIDEN[kind]
    per = 32 // bits
    out: Any = None
    for i, read in enumerate(reads):
        values = _elements(lanes, read, bits, widen)
        if out is None:
            out = np.zeros((len(values), rows, depth), values.dtype)
        row = _GROUP + 8 * (i % 2) if rows == 16 else _GROUP
        block = i // 2 if rows == 16 else i
        for j in range(per):
            out[:, row, block * 4 * per + _MEMBER * per + j] = values[:, :, j]
    return out


def _accumulator(kind: str) -> tuple[int, int]:
    """Registers of C, and elements in each."""
    return (2, 2) if kind == "f16" else (4, 1)


def _accumulated(lanes: Lanes, reads: list[Read], kind: str) -> Any:
    """Matrix C: shape (warps, 16, 8)."""
    _, per = _accumulator(kind)
    out = np.zeros((lanes.count // WARP, 16, 8), np.float64 if kind == "s32" else np.float32)
    as_number = {"f16": f16_to_f32, "f32": lambda b: b.view(np.float32), "s32": lambda b: b.view(np.int32)}[kind]
    for i, read in enumerate(reads):
        values = _elements(lanes, read, 32 // per, as_number)
        for j in range(per):
            row = _GROUP + 8 * (i if per == 2 else i // 2)
            out[:, row, 2 * _MEMBER + (j if per == 2 else i % 2)] = values[:, :, j]
    return out


@instruction("mma")
def _mma(item: Instruction, scope: Scope) -> Execute:
    """D = A B + C of m16n8k*, A row-major and B column-major, one tile per warp."""
    names = item.modifiers
    shape = next((m for m in names if re.fullmatch(r"m\d+n\d+k\d+", m)), "")
    to, a_kind, b_kind, c_kind = names[-4:]
    if not {"row", "col"} <= set(names) or a_kind not in _WIDEN or b_kind not in _WIDEN or to != c_kind:
        raise UnsupportedInstruction(item.name)
    depth = int(shape.partition("k")[2] or 0)
    known = shape == f"m16n8k{depth}" and depth in _SHAPES[_WIDEN[a_kind][0]]
    if not known or c_kind not in ("f16", "f32", "s32") or {"satfinite", "sp", "and", "xor"} & set(names):
        raise UnsupportedInstruction(item.name)
    a, b, c = ([scope.read(part, _U4) for part in parts(operand)] for operand in item.operands[1:4])
    writes = [scope.write(part) for part in parts(item.operands[0])]

    def execute(lanes: Lanes) -> None:
        left, right = _operand(lanes, a, a_kind, 16, depth), _operand(lanes, b, b_kind, 8, depth)
        out = np.matmul(left, right.transpose(0, 2, 1)) + _accumulated(lanes, c, c_kind)
        for i, write in enumerate(writes):
            write(lanes, _result(out, i, to).reshape(-1))

    return execute


def _result(out: Any, i: int, kind: str) -> Any:
    """Register i of D, shape (warps, 32), as uint32."""
    if kind == "f16":
        low, high = (f32_to_f16(out[:, _GROUP + 8 * i, 2 * _MEMBER + j]).astype(np.uint32) for j in range(2))
        return low | (high << np.uint32(16))
    value = out[:, _GROUP + 8 * (i // 2), 2 * _MEMBER + i % 2]
    number = value.astype(np.int64).astype(np.int32) if kind == "s32" else value.astype(np.float32)
    return np.ascontiguousarray(number).view(np.uint32)


def _rows(lanes: Lanes, address: Read, matrix: int) -> Any:
    """Per lane the address of its 8x8 matrix's row that holds the lane's two elements, and of all rows."""
    starts = lanes.expand(address(lanes))
    return starts, lanes.number - lanes.lane + 8 * matrix


def _checked(item: Instruction, operand: Operand) -> int:
    count = len(parts(operand))
    if not {"m8n8", "b16"} <= set(item.modifiers) or f"x{count}" not in item.modifiers:
        raise UnsupportedInstruction(item.name)
    return count


@instruction("ldmatrix")
def _ldmatrix(item: Instruction, scope: Scope) -> Execute:
    """Load 8x8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m."""
    _checked(item, item.operands[0])
    address, transposed = scope.address(item.operands[1]), "trans" in item.modifiers
    writes = [scope.write(part) for part in parts(item.operands[0])]

    def execute(lanes: Lanes) -> None:
        for matrix, write in enumerate(writes):
            starts, first = _rows(lanes, address, matrix)
            if not transposed:
                where = starts[first + (lanes.lane >> 2)] + 4 * (lanes.lane & 3)
                words = gather(lanes, "shared", where[lanes.index], _U4, 1, item.name)[:, 0]
            else:
                words = np.uint32(0)
                for j in range(2):
                    where = starts[first + 2 * (lanes.lane & 3) + j] + 2 * (lanes.lane >> 2)
                    half = gather(lanes, "shared", where[lanes.index], np.dtype("u2"), 1, item.name)[:, 0]
                    words = words | (half.astype(np.uint32) << np.uint32(16 * j))
            write(lanes, lanes.spread(words))

    return execute


@instruction("stmatrix")
def _stmatrix(item: Instruction, scope: Scope) -> Execute:
    """Store 8x8 matrices of 16-bit elements, the inverse of ldmatrix."""
    _checked(item, item.operands[1])
    address, transposed = scope.address(item.operands[0]), "trans" in item.modifiers
    reads = [scope.read(part, _U4) for part in parts(item.operands[1])]

    def execute(lanes: Lanes) -> None:
        for matrix, read in enumerate(reads):
            starts, first = _rows(lanes, address, matrix)
            words = lanes.picked(read(lanes))
            for j in range(2):
                row, column = lanes.lane >> 2, 2 * (lanes.lane & 3) + j
                if transposed:
                    row, column = column, row
                half = (words >> np.uint32(16 * j)).astype(np.uint16)
                where = (starts[first + row] + 2 * column)[lanes.index]
                scatter(lanes, "shared", where, half[:, None], item.name)

    return execute
