"""Tensors on their way into a DSL: CPU tensors are registered, and presented as tensors of CUDA device 0.

Both DSLs take torch tensors through tvm-ffi, which reads `torch.Tensor.__dlpack_c_exchange_api__` (a table of C
functions, dlpack.h `DLPackExchangeAPI`). The table is replaced by one that calls the original functions.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .device import Tensors

CPU, CUDA = 1, 2  # DLDeviceType
_NAME = b"dlpack_exchange_api"
_MANAGED_DEVICE = 40  # offset of dl_tensor.device.device_type in DLManagedTensorVersioned
_TENSOR_DEVICE = 8  # its offset in DLTensor
_LEGACY_DEVICE = 8  # its offset in DLManagedTensor, which starts with the DLTensor

_Pointer = ctypes.c_void_p
_PointerTo = ctypes.POINTER(ctypes.c_void_p)
_FromObject = (ctypes.c_int, _Pointer, _PointerTo)
_TensorFromObject = (ctypes.c_int, _Pointer, _Pointer)
_Stream = (ctypes.c_int, ctypes.c_int32, ctypes.c_int32, _PointerTo)


class _Table(ctypes.Structure):
    """struct DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", _Pointer),
        ("allocate", _Pointer),
        ("managed_from_object", _Pointer),
        ("managed_to_object", _Pointer),
        ("tensor_from_object", _Pointer),
        ("current_stream", _Pointer),
    )


_alive: list[Any] = []  # C code keeps pointers to these


def set_device(address: int, offset: int, device: int) -> None:
    """Overwrite the device type in a DLPack structure at `address`."""
    ctypes.c_int32.from_address(address + offset).value = device


def capsule_pointer(capsule: Any, name: bytes) -> int:
    """The pointer in a PyCapsule.

    Raises:
        ValueError: The capsule has another name.
    """
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, name))


def install(tensors: Tensors) -> None:
    """Replace torch's exchange table, and register every tensor whose address Python code asks for."""
    import torch

    original = _Table.from_address(capsule_pointer(torch.Tensor.__dlpack_c_exchange_api__, _NAME))  # type: ignore
    table = _Table.from_buffer_copy(original)
    managed, plain = ctypes.PYFUNCTYPE(*_FromObject), ctypes.PYFUNCTYPE(*_TensorFromObject)
    from_object, tensor_from = managed(original.managed_from_object), plain(original.tensor_from_object)
    to_object = managed(original.managed_to_object)

    def managed_from_object(item: int, out: Any) -> int:
        status = _quietly(from_object, item, out)
        if status == 0:
            tensors.add(ctypes.cast(item, ctypes.py_object).value)
            set_device(out[0], _MANAGED_DEVICE, CUDA)
        return status

    def tensor_from_object(item: int, out: int) -> int:
        status = _quietly(tensor_from, item, out)
        if status == 0:
            tensors.add(ctypes.cast(item, ctypes.py_object).value)
            set_device(out, _TENSOR_DEVICE, CUDA)
        return status

    def managed_to_object(item: int, out: Any) -> int:
        set_device(item, _MANAGED_DEVICE, CPU)
        return int(to_object(item, out))

    def current_stream(kind: int, number: int, out: Any) -> int:
        out[0] = None
        return 0

    _fill(table, "managed_from_object", ctypes.CFUNCTYPE(*_FromObject)(managed_from_object))
    _fill(table, "tensor_from_object", ctypes.CFUNCTYPE(*_TensorFromObject)(tensor_from_object))
    _fill(table, "managed_to_object", ctypes.CFUNCTYPE(*_FromObject)(managed_to_object))
    _fill(table, "current_stream", ctypes.CFUNCTYPE(*_Stream)(current_stream))
    torch.Tensor.__dlpack_c_exchange_api__ = _capsule(table)  # type: ignore[attr-defined]
    _register_on_data_ptr(torch, tensors)


def _quietly(function: Any, item: int, out: Any) -> int:
    """Call one of torch's functions; -1 where it raises (a sparse tensor, say), as C cannot pass that on."""
    try:
        return int(function(item, out))
    except Exception:
        return -1


def _fill(table: _Table, field: str, callback: Any) -> None:
    _alive.append(callback)
    setattr(table, field, ctypes.cast(callback, ctypes.c_void_p))


def _capsule(table: _Table) -> Any:
    _alive.append(table)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(table), _NAME, None)


def _register_on_data_ptr(torch: Any, tensors: Tensors) -> None:
    """A raw address may reach a kernel too (`cute.runtime.make_ptr`)."""
    original = torch.Tensor.data_ptr

    def data_ptr(self: Any) -> int:
        if self.device.type == "cpu":
            tensors.add(self)
        return int(original(self))

    torch.Tensor.data_ptr = data_ptr


def present_legacy_capsule(capsule: Any) -> None:
    """Make the tensor of an unversioned `__dlpack__()` capsule one of CUDA device 0."""
    set_device(capsule_pointer(capsule, b"dltensor"), _LEGACY_DEVICE, CUDA)
