"""A kernel decoded once: instructions as closures, variables laid out in their memories."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import atomic, convert, data, floating, integer, matrix, transfer, warp  # noqa: F401  they fill the table
from .decode import Execute, Read, Scope, decoder
from .errors import UnsupportedInstruction
from .lanes import Lanes
from .memory import PARAM_WINDOW
from .records import Immediate, Instruction, Kernel, Symbol, Variable

_GPU_ONLY = ("wgmma", "tcgen05", "cp.async.bulk", "cp.reduce", "mbarrier", "multimem", "clusterlaunchcontrol")
_DYNAMIC_ALIGN = 1024


class Kind(enum.Enum):
    """How an instruction moves its lanes on."""

    PLAIN = enum.auto()
    BRANCH = enum.auto()
    EXIT = enum.auto()
    TRAP = enum.auto()
    BARRIER = enum.auto()
    WARP = enum.auto()  # waits for the other lanes of its warp


@dataclass(frozen=True)
class Step:
    """One decoded instruction; `numbers` reads a barrier's id and thread count, or a warp's member mask."""

    kind: Kind
    text: str
    guard: Read | None
    execute: Execute
    target: int = 0
    numbers: tuple[Read, ...] = ()


class Program:
    """A kernel ready to run, whatever the launch."""

    def __init__(self, kernel: Kernel) -> None:
        """Decodes every instruction; one that is unknown fails when it is reached.

        Raises:
            UnsupportedInstruction: The kernel uses instructions that only a GPU has (wgmma, TMA, ...).
        """
        self.name, self.params = kernel.name, kernel.params
        _refuse_gpu_only(kernel)
        self.static_shared, self.local, symbols = _layout(kernel.variables.values())
        self.constants, addresses = _constants(kernel.variables.values())
        self.param_offsets = _offsets(kernel.params)
        symbols |= addresses | {name: PARAM_WINDOW + at for name, at in self.param_offsets.items()}
        self.scope = Scope(kernel.registers, symbols, self.param_offsets)
        self.registers = self.scope.initial()
        self.merges = frozenset(kernel.labels.values())
        self.steps = [self._step(item, kernel.labels) for item in kernel.code]
        self.steps.append(Step(Kind.EXIT, "ret", None, _nothing))

    def _step(self, item: Instruction, labels: dict[str, int]) -> Step:
        guard = self.scope.predicate(item.guard) if item.guard else None
        try:
            kind = _kind(item)
            target = _target(item, labels) if kind is Kind.BRANCH else 0
            numbers = _numbers(item, kind, self.scope)
            execute = decoder(item)(item, self.scope) if kind in (Kind.PLAIN, Kind.WARP) else _nothing
        except (UnsupportedInstruction, ValueError, KeyError, IndexError):
            return Step(Kind.PLAIN, item.name, guard, _refuse(item.name, self.name))
        return Step(kind, item.name, guard, execute, target, numbers)


def _nothing(lanes: Lanes) -> None:
    """Only the scheduler acts on this instruction."""


def _refuse(name: str, kernel: str) -> Execute:
    def execute(lanes: Lanes) -> None:
        raise UnsupportedInstruction(name, kernel)

    return execute


def _refuse_gpu_only(kernel: Kernel) -> None:
    """Name the most telling instruction that needs a GPU, before anything runs."""
    names = [item.name for item in kernel.code]
    for prefix in _GPU_ONLY:
        found = [name for name in names if name.startswith(prefix)]
        if found:  # the one that computes says more than its fences
            raise UnsupportedInstruction(max(found, key=lambda name: ("mma" in name[5:], len(name))), kernel.name)


def _kind(item: Instruction) -> Kind:
    if item.opcode == "bra":
        return Kind.BRANCH
    if item.opcode in ("ret", "exit"):
        return Kind.EXIT
    if item.opcode == "trap":
        return Kind.TRAP
    if item.opcode in ("bar", "barrier") and "warp" not in item.modifiers:
        if not {"sync", "arrive"} & set(item.modifiers) or "cluster" in item.modifiers:
            raise UnsupportedInstruction(item.name)
        return Kind.BARRIER
    warp_wide = item.opcode in ("shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "bar", "elect")
    return Kind.WARP if warp_wide else Kind.PLAIN


def _target(item: Instruction, labels: dict[str, int]) -> int:
    operand = item.operands[-1]
    assert isinstance(operand, Symbol)
    return labels[operand.name]


def _numbers(item: Instruction, kind: Kind, scope: Scope) -> tuple[Read, ...]:
    u4 = np.dtype("u4")
    if kind is Kind.BARRIER:
        return tuple(scope.read(operand, u4) for operand in item.operands)
    if kind is Kind.WARP:
        whole = item.opcode in ("mma", "ldmatrix", "stmatrix") or "sync" not in item.modifiers
        mask = Immediate(-1) if whole else item.operands[-1]
        return (scope.read(mask, u4),)
    return ()


def _layout(variables: Iterable[Variable]) -> tuple[int, int, dict[str, int]]:
    """Bytes of static shared and of local memory, and the variables' offsets; dynamic shared comes last."""
    sizes = {"shared": 0, "local": 0}
    offsets: dict[str, int] = {}
    dynamic = [v.name for v in variables if v.space == "shared" and not v.size]
    for v in variables:
        if v.space in sizes and v.size:
            offsets[v.name] = -(-sizes[v.space] // v.align) * v.align
            sizes[v.space] = offsets[v.name] + v.size
    if dynamic:
        sizes["shared"] = -(-sizes["shared"] // _DYNAMIC_ALIGN) * _DYNAMIC_ALIGN
        offsets |= dict.fromkeys(dynamic, sizes["shared"])
    return sizes["shared"], sizes["local"], offsets


def _constants(variables: Iterable[Variable]) -> tuple[list[Any], dict[str, int]]:
    """Host memory for the module's global and constant variables, and their addresses."""
    arrays, addresses = [], {}
    for v in variables:
        if v.space in ("global", "const") and v.size:
            array = np.zeros(v.size + 32, np.uint8)
            start = -array.ctypes.data % 16
            array[start : start + len(v.initial)] = np.frombuffer(v.initial, np.uint8)
            addresses[v.name] = array.ctypes.data + start
            arrays.append(array[start : start + v.size])
    return arrays, addresses


def _offsets(params: dict[str, int]) -> dict[str, int]:
    """Each parameter at a multiple of 16, so that it is aligned whatever its type."""
    offsets, at = {}, 0
    for name, size in params.items():
        offsets[name] = at
        at += -(-size // 16) * 16
    return offsets
