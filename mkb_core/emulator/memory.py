"""The memories of the emulated device: checked global memory, and shared and local memory in banks.

PTX ISA section 5.1 (state spaces) and 6.4.1.1 (generic addressing). Addresses are int64. Global addresses are
host addresses; the windows of shared and local memory lie above every host address.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 1 << 61
PARAM_WINDOW = 1 << 62
POISON = 0xFF  # every float type reads a NaN from it
_GRANULE = 16  # the widest access; views start at a multiple of it


class AccessError(Exception):
    """An access that is refused: `position` indexes the addresses that were passed."""

    def __init__(self, position: int, reason: str) -> None:
        """Takes the index of the first offending address, and what is wrong with it."""
        super().__init__(reason)
        self.position = position


class Region:
    """One piece of host memory that kernels may touch, `size` bytes at address `base`."""

    def __init__(self, base: int, size: int) -> None:
        """Keeps no reference to the memory: whoever registers it keeps it alive."""
        self.base, self.end = base, base + size
        self.origin = base // _GRANULE * _GRANULE
        length = -(-(self.end - self.origin) // _GRANULE) * _GRANULE
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(self.origin))
        self._views: dict[tuple[np.dtype, int], Any] = {}

    def view(self, dtype: np.dtype, count: int) -> Any:
        """The memory as rows of `count` elements, shape (rows, count)."""
        key = (dtype, count)
        if key not in self._views:
            self._views[key] = self._bytes.view(dtype).reshape(-1, count)
        return self._views[key]


class GlobalMemory:
    """The regions that kernels may touch, found by address."""

    def __init__(self) -> None:
        """Starts without regions: every access is then refused."""
        self._regions: list[Region] = []
        self._bases: list[int] = []

    def add(self, base: int, size: int) -> None:
        """Register `size` bytes at `base`; what overlapped them before is forgotten."""
        found = self._find(base)
        if size <= 0 or (found and found.base == base and found.end == base + size):
            return
        kept = [r for r in self._regions if r.end <= base or r.base >= base + size]
        self._regions = sorted([*kept, Region(base, size)], key=lambda r: r.base)
        self._bases = [r.base for r in self._regions]

    def replace(self, spans: Iterable[tuple[int, int]]) -> None:
        """Let the regions be these (base, size), and no others; those that overlap become one."""
        merged: list[tuple[int, int]] = []
        for base, size in sorted(spans):
            start, end = merged.pop() if merged and base < merged[-1][1] else (base, base)
            merged.append((start, max(end, base + size)))
        self._regions = [Region(start, end - start) for start, end in merged]
        self._bases = [r.base for r in self._regions]

    def room(self, address: int) -> int:
        """Bytes from an address to the end of the region that it lies in; 0 outside every region."""
        found = self._find(address)
        return found.end - address if found else 0

    def _find(self, address: int) -> Region | None:
        i = bisect.bisect_right(self._bases, address) - 1
        return self._regions[i] if i >= 0 and address < self._regions[i].end else None

    def gather(self, addresses: Any, dtype: np.dtype, count: int) -> Any:
        """Load `count` elements at each address: shape (n,) -> (n, count).

        Raises:
            AccessError: An address is misaligned or outside every region.
        """
        pieces = self._pieces(addresses, dtype.itemsize * count)
        if len(pieces) == 1:
            region, _, rows = pieces[0]
            return region.view(dtype, count)[rows]
        out = np.empty((len(addresses), count), dtype)
        for region, where, rows in pieces:
            out[where] = region.view(dtype, count)[rows]
        return out

    def scatter(self, addresses: Any, values: Any) -> None:
        """Store `values`, shape (n, count), at the addresses, shape (n,); of two equal ones the last wins.

        Raises:
            AccessError: An address is misaligned or outside every region.
        """
        count = values.shape[1]
        for region, where, rows in self._pieces(addresses, values.dtype.itemsize * count):
            region.view(values.dtype, count)[rows] = values[where]

    def _pieces(self, addresses: Any, width: int) -> list[tuple[Region, Any, Any]]:
        """Per region that is hit: the region, which of the addresses lie in it, their rows."""
        check_alignment(addresses, width)
        low, high = int(addresses.min()), int(addresses.max())
        region = self._find(low)
        if region is not None and high + width <= region.end:
            return [(region, slice(None), (addresses - region.origin) // width)]
        pieces, todo = [], np.ones(len(addresses), bool)
        while todo.any():
            position = int(np.argmax(todo))
            region = self._find(int(addresses[position]))
            if region is None:
                raise AccessError(position, f"address {int(addresses[position]):#x} is outside every tensor")
            where = todo & (addresses >= region.base) & (addresses < region.end)
            self._check_end(addresses, where, region, width)
            pieces.append((region, where, (addresses[where] - region.origin) // width))
            todo &= ~where
        return pieces

    @staticmethod
    def _check_end(addresses: Any, where: Any, region: Region, width: int) -> None:
        over = where & (addresses + width > region.end)
        if over.any():
            position = int(np.argmax(over))
            beyond = int(addresses[position]) + width - region.end
            raise AccessError(position, f"{beyond} bytes past the end of a tensor")


class Banks:
    """One memory of `size` bytes per bank: shared memory per block, local memory per thread."""

    def __init__(self, banks: int, size: int) -> None:
        """Every byte starts as poison, as nothing defines it on the device."""
        self.size = size
        self.stride = -(-max(size, 1) // _GRANULE) * _GRANULE
        self._bytes = np.full(banks * self.stride, POISON, np.uint8)

    def gather(self, banks: Any, offsets: Any, dtype: np.dtype, count: int) -> Any:
        """Load `count` elements at each (bank, offset in bytes): shapes (n,) -> (n, count).

        Raises:
            AccessError: An offset is misaligned or outside its bank.
        """
        rows = self._rows(banks, offsets, dtype.itemsize * count)
        return self._bytes.view(dtype).reshape(-1, count)[rows]

    def scatter(self, banks: Any, offsets: Any, values: Any) -> None:
        """Store `values`, shape (n, count), at each (bank, offset in bytes).

        Raises:
            AccessError: An offset is misaligned or outside its bank.
        """
        rows = self._rows(banks, offsets, values.dtype.itemsize * values.shape[1])
        self._bytes.view(values.dtype).reshape(-1, values.shape[1])[rows] = values

    def _rows(self, banks: Any, offsets: Any, width: int) -> Any:
        check_alignment(offsets, width)
        if int(offsets.min()) < 0 or int(offsets.max()) + width > self.size:
            position = int(np.argmax((offsets < 0) | (offsets + width > self.size)))
            raise AccessError(position, f"offset {int(offsets[position])} of {self.size} bytes")
        return (banks * self.stride + offsets) // width


def check_alignment(addresses: Any, width: int) -> None:
    """Refuse an access of `width` bytes at an address that is no multiple of it.

    Raises:
        AccessError: Names the first misaligned address.
    """
    if width > 1 and (bad := addresses % width != 0).any():
        position = int(np.argmax(bad))
        raise AccessError(position, f"address {int(addresses[position]):#x} is misaligned for {width} bytes")
