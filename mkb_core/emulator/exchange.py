"""Tensors on their way into a DSL: CPU tensors are registered, and presented as tensors of CUDA device 0.

Both DSLs take torch tensors through tvm-ffi. It prefers a table of C functions (`__dlpack_c_exchange_api__`) that
nobody can watch, so it is taken away; what tvm-ffi does instead goes through `torch.utils.dlpack.to_dlpack` and
`Tensor.__dlpack__`, as CuTe DSL's own `from_dlpack` does.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .device import Tensors

CUDA = 2  # DLDeviceType
_DEVICE = 8  # offset of dl_tensor.device.device_type in DLManagedTensor (dlpack.h)


def install(tensors: Tensors) -> None:
    """Register every tensor that a DSL is given, or whose address Python code asks for."""
    import torch
    import tvm_ffi  # noqa: F401  without the table it would build an extension when it is imported

    tensor: Any = torch.Tensor
    del tensor.__dlpack_c_exchange_api__
    export, address = tensor.__dlpack__, tensor.data_ptr

    def dlpack(self: Any, **options: Any) -> Any:
        capsule = export(self.detach(), **options)
        # NumPy and torch itself ask for a version, and get the CPU tensor that it is
        if options.get("max_version") is None and self.device.type == "cpu":
            tensors.add(self)
            _present(capsule)
        return capsule

    def data_ptr(self: Any) -> int:
        if self.device.type == "cpu":
            tensors.add(self)
        return int(address(self))

    tensor.__dlpack__, tensor.data_ptr = dlpack, data_ptr
    setattr(torch.utils.dlpack, "to_dlpack", dlpack)  # noqa: B010  mypy refuses the plain assignment
    setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)  # noqa: B010


def _present(capsule: Any) -> None:
    """Make the tensor of an unversioned capsule one of CUDA device 0."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int32.from_address(int(get(capsule, b"dltensor")) + _DEVICE).value = CUDA
