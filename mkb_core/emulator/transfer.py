"""Loads, stores and asynchronous copies. PTX ISA sections 9.7.9.8 (ld), 9.7.9.12 (st), 9.7.9.25 (cp.async).

A cp.async is done at once, so a missing wait goes unseen here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .decode import UNSIGNED, Execute, Read, Scope, Write, dtype_of, instruction, parts
from .errors import UnsupportedInstruction
from .lanes import Lanes
from .memory import LOCAL_WINDOW, SHARED_WINDOW, AccessError
from .records import Address, Immediate, Instruction, Symbol

_SPACES = {
    "global": "global",
    "const": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "local": "local",
    "param": "param",
}
_HINTS = re.compile(
    r"weak|relaxed|acquire|release|volatile|mmio|cta|gpu|sys|cluster|nc|unified|c[agsv]|lu|wb|wt|L[12]::[\w:]+|v[248]"
)

Gather = Callable[[Lanes, Any, np.dtype, int], Any]


def space_of(item: Instruction, options: tuple[str, ...]) -> str:
    """The state space an access names, `generic` where it names none.

    Raises:
        UnsupportedInstruction: A modifier is none of space, ordering, cache hint or vector.
    """
    named = [m for m in options if m in _SPACES]
    if len(named) > 1 or any(m not in _SPACES and not _HINTS.fullmatch(m) for m in options):
        raise UnsupportedInstruction(item.name)
    return _SPACES[named[0]] if named else "generic"


def gather(lanes: Lanes, space: str, addresses: Any, dtype: np.dtype, count: int, what: str) -> Any:
    """Load for the executing lanes, addresses of shape (active,): shape (active, count).

    Raises:
        MemoryFault: Names the kernel, block and thread.
    """
    try:
        if space == "global":
            return lanes.global_memory.gather(addresses, dtype, count)
        if space == "shared":
            return lanes.shared.gather(lanes.bank[lanes.index], addresses, dtype, count)
        if space == "local":
            return lanes.local.gather(lanes.number[lanes.index], addresses, dtype, count)
    except AccessError as error:
        raise lanes.fault(error, f"{what} ({space} memory)") from None
    out = np.empty((len(addresses), count), dtype)
    for name, chosen, base in _windows(addresses):
        inner = _among(lanes, chosen)
        out[chosen] = gather(lanes, name, addresses[chosen] - base, dtype, count, what)
        lanes.select(inner)
    return out


def scatter(lanes: Lanes, space: str, addresses: Any, values: Any, what: str) -> None:
    """Store for the executing lanes: addresses (active,), values (active, count).

    Raises:
        MemoryFault: Names the kernel, block and thread.
    """
    try:
        if space == "global":
            lanes.global_memory.scatter(addresses, values)
        elif space == "shared":
            lanes.shared.scatter(lanes.bank[lanes.index], addresses, values)
        elif space == "local":
            lanes.local.scatter(lanes.number[lanes.index], addresses, values)
        else:
            for name, chosen, base in _windows(addresses):
                outer = _among(lanes, chosen)
                scatter(lanes, name, addresses[chosen] - base, values[chosen], what)
                lanes.select(outer)
    except AccessError as error:
        raise lanes.fault(error, f"{what} ({space} memory)") from None


def _windows(addresses: Any) -> list[tuple[str, Any, int]]:
    """A generic access by state space: name, which addresses, the window's start."""
    shared = (addresses >= SHARED_WINDOW) & (addresses < LOCAL_WINDOW)
    local = addresses >= LOCAL_WINDOW
    split = [("global", ~(shared | local), 0), ("shared", shared, SHARED_WINDOW), ("local", local, LOCAL_WINDOW)]
    return [piece for piece in split if piece[1].any()]


def _among(lanes: Lanes, chosen: Any) -> Any:
    """Narrow the executing lanes to the chosen ones of them; returns the mask before."""
    before = lanes.mask
    mask = np.zeros(lanes.count, bool)
    mask[lanes.number[lanes.index][chosen]] = True
    lanes.select(mask)
    return before


@instruction("ld", "ldu")
def _ld(item: Instruction, scope: Scope) -> Execute:
    """Load one value or a vector; narrow signed types are extended."""
    space = space_of(item, item.modifiers[:-1])
    dtype = dtype_of(item.modifiers[-1])
    raw = UNSIGNED[dtype.itemsize]
    writes = [scope.write(part) for part in parts(item.operands[0])]
    if space == "param":
        return _ld_param(item, scope, raw)
    address = scope.address(item.operands[1])

    def execute(lanes: Lanes) -> None:
        data = gather(lanes, space, lanes.picked(address(lanes)), raw, len(writes), item.name)
        for i, write in enumerate(writes):
            write(lanes, lanes.spread(data[:, i]).view(dtype))

    return execute


def _ld_param(item: Instruction, scope: Scope, raw: np.dtype) -> Execute:
    """Read the kernel's parameters; the results of the calls that are ignored read as 0."""
    where = item.operands[1]
    assert isinstance(where, Address)
    writes = [scope.write(part) for part in parts(item.operands[0])]
    if not isinstance(where.base, Symbol) or where.base.name not in scope.params:
        if isinstance(where.base, Symbol):
            return lambda lanes: _write_all(lanes, writes, [raw.type(0)] * len(writes))
        raise UnsupportedInstruction(item.name)
    start = scope.params[where.base.name] + where.base.offset + where.offset

    return lambda lanes: _write_all(lanes, writes, np.frombuffer(lanes.params, raw, len(writes), start))


def _write_all(lanes: Lanes, writes: list[Write], values: Any) -> None:
    for write, value in zip(writes, values, strict=True):
        write(lanes, value)


@instruction("st")
def _st(item: Instruction, scope: Scope) -> Execute:
    """Store one value or a vector; arguments of the calls that are ignored go nowhere."""
    space = space_of(item, item.modifiers[:-1])
    if space == "param":
        return lambda lanes: None
    raw = UNSIGNED[dtype_of(item.modifiers[-1]).itemsize]
    address = scope.address(item.operands[0])
    reads = [scope.read(part, raw) for part in parts(item.operands[1])]

    def execute(lanes: Lanes) -> None:
        values = np.stack([lanes.picked(read(lanes)) for read in reads], axis=1)
        scatter(lanes, space, lanes.picked(address(lanes)), values, item.name)

    return execute


@instruction("cp")
def _cp_async(item: Instruction, scope: Scope) -> Execute:
    """Copy 4, 8 or 16 bytes from global to shared memory, zeros after the given source size."""
    names = item.modifiers
    if names[:1] == ("async",) and names[1:] in (("commit_group",), ("wait_group",), ("wait_all",)):
        return lambda lanes: None
    if names[:1] != ("async",) or names[1] not in ("ca", "cg") or "global" not in names or "bulk" in names:
        raise UnsupportedInstruction(item.name)
    size = item.operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise UnsupportedInstruction(item.name)
    target, source = (scope.address(operand) for operand in item.operands[:2])
    return _copy(item, target, source, size.value, _source_size(item, scope, size.value))


def _source_size(item: Instruction, scope: Scope, full: int) -> Read | None:
    if len(item.operands) < 4 or any(m.startswith("L2::cache_hint") for m in item.modifiers):
        if len(item.operands) > 4:
            raise UnsupportedInstruction(item.name)
        return None
    read = scope.read(item.operands[3], np.dtype("u4"))
    slot = getattr(item.operands[3], "name", None)
    if slot in scope.slots and scope.slots[slot][1] == 0:  # a predicate that says: ignore the source
        return lambda lanes: np.where(read(lanes), np.uint32(0), np.uint32(full))
    return read


def _copy(item: Instruction, target: Read, source: Read, size: int, source_size: Read | None) -> Execute:
    dtype = UNSIGNED[min(size, 8)]
    count = size // dtype.itemsize

    def execute(lanes: Lanes) -> None:
        to, start = lanes.picked(target(lanes)), lanes.picked(source(lanes))
        if source_size is None:
            data = gather(lanes, "global", start, dtype, count, item.name)
        else:
            data = _partial(lanes, start, lanes.picked(source_size(lanes)), size, item.name).view(dtype)
        scatter(lanes, "shared", to, data, item.name)

    return execute


def _partial(lanes: Lanes, start: Any, sizes: Any, size: int, what: str) -> Any:
    """Bytes of shape (active, size) of which only the first `sizes` are read, the rest 0."""
    data = np.zeros((len(start), size), np.uint8)
    whole = sizes >= size
    for chosen, width in ((whole, size), *((~whole & (sizes > i), -i) for i in range(size))):
        if not chosen.any():
            continue
        offset, count = (0, width) if width > 0 else (-width, 1)
        before = _among(lanes, chosen)
        wide = UNSIGNED[min(count, 8)]
        rows = gather(lanes, "global", start[chosen] + offset, wide, count // wide.itemsize, what)
        data[chosen, offset : offset + count] = np.ascontiguousarray(rows).view(np.uint8)
        lanes.select(before)
    return data
