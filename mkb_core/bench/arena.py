"""Memory that checker and runner both map: one object a tensor, passed as a file descriptor."""

import os
from typing import TYPE_CHECKING, Any

from mkb_core.bench.wire import map_shared, memory_file

if TYPE_CHECKING:
    from torch import Tensor


class HostArena:
    """A tensor in a memory file (devices `emulated` and CPU)."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        self._map = map_shared(fd, max(nbytes, 1))

    @classmethod
    def create(cls, nbytes: int) -> "HostArena":
        """A new zeroed arena of `nbytes` bytes."""
        return cls(memory_file("arena", max(nbytes, 1)), nbytes)

    def bytes(self) -> "Tensor":
        """The memory as a uint8 tensor of shape [nbytes]; no copy."""
        import torch

        return torch.frombuffer(self._map, dtype=torch.uint8, count=self.nbytes)


class CudaArena:
    """A tensor in its own CUDA allocation: no neighbours, and the descriptor is the capability.

    Made with cuMemCreate and exported as a POSIX file descriptor (CUDA driver API, virtual memory management),
    so the physical granularity of 2 MiB keeps anything else out of reach.
    """

    def __init__(self, fd: int, nbytes: int, handle: Any = None) -> None:
        from cuda.bindings import driver

        self.fd, self.nbytes = fd, nbytes
        if handle is None:
            kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            handle = _ok(driver.cuMemImportFromShareableHandle(fd, kind))
        prop = _properties()
        size = _padded(nbytes, prop)
        self.pointer = int(_ok(driver.cuMemAddressReserve(size, 0, 0, 0)))
        _ok(driver.cuMemMap(self.pointer, size, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = prop.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _ok(driver.cuMemSetAccess(self.pointer, size, [access], 1))

    @classmethod
    def create(cls, nbytes: int) -> "CudaArena":
        """A new arena of `nbytes` bytes on the current device."""
        from cuda.bindings import driver

        prop = _properties()
        handle = _ok(driver.cuMemCreate(_padded(nbytes, prop), prop, 0))
        fd = int(_ok(driver.cuMemExportToShareableHandle(handle, prop.requestedHandleTypes, 0)))
        os.set_inheritable(fd, False)
        return cls(fd, nbytes, handle)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}

    def bytes(self) -> "Tensor":
        """The memory as a uint8 tensor of shape [nbytes]; no copy."""
        import torch

        return torch.as_tensor(self, device="cuda")


Arena = HostArena | CudaArena


def arena_class(device: str) -> type[HostArena] | type[CudaArena]:
    """The kind of arena that tensors of this torch device cross in."""
    return CudaArena if device == "cuda" else HostArena


def typed(memory: "Tensor", dtype: str, shape: tuple[int, ...]) -> "Tensor":
    """The bytes of an arena as a contiguous tensor of this dtype and shape; no copy."""
    import torch

    return memory.view(getattr(torch, dtype)).view(shape)


def poison(memory: "Tensor", dtype: str) -> None:
    """Fill with NaN (floats) or 0xA5 bytes, so that what a call did not write shows."""
    memory.fill_(0xFF if dtype.startswith(("float", "bfloat")) else 0xA5)


def _properties() -> Any:
    from cuda.bindings import driver

    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    prop.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return prop


def _padded(nbytes: int, prop: Any) -> int:
    from cuda.bindings import driver

    flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    step = int(_ok(driver.cuMemGetAllocationGranularity(prop, flag)))
    return max(1, -(-nbytes // step)) * step


def _ok(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; raises RuntimeError with the driver's name for the fault."""
    code, *values = result
    if int(code) != 0:
        raise RuntimeError(f"CUDA driver: {code!r}")
    return values[0] if values else None
