"""TIRx (TVM 0.27) on the emulated device: its CUDA source becomes PTX through NVRTC, its launches come here.

`tvm.compile` makes a device module through the global function `ffi.Module.create.cuda`; without a CUDA runtime
nobody provides it. It is provided here by a module of C callbacks (a tvm-ffi system library), one per kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import math
import os
from pathlib import Path
from typing import Any

from ..shim import cache_directory
from .device import Device
from .errors import EmulatorError

ARCH = "sm_90a"
_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_CLUSTER = ("clusterCtaIdx.x", "clusterCtaIdx.y", "clusterCtaIdx.z")
_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"
_alive: list[Any] = []  # C code keeps pointers to these


class _Any(ctypes.Structure):
    """struct TVMFFIAny: a type index and a value of 8 bytes."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64))


_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Any), ctypes.c_int32, ctypes.POINTER(_Any))


def install(device: Device) -> None:
    """Import TVM and give it a CUDA device.

    Raises:
        RuntimeError: NVRTC or its headers are not installed.
    """
    os.environ["CUDA_PATH"] = str(_toolkit())
    import tvm  # noqa: F401  registers the functions that are replaced
    import tvm_ffi

    def create(code: Any, form: Any, functions: Any, sources: Any) -> Any:
        return _module(device, _ptx(code, str(form)), functions)

    def nothing(*args: Any) -> None:
        return None

    tvm_ffi.register_global_func("ffi.Module.create.cuda", create, override=True)
    tvm_ffi.register_global_func("__tvm_set_device", nothing, override=True)
    # a kernel with tensor maps is refused at its launch, which names the instruction
    tvm_ffi.register_global_func("runtime.cuTensorMapEncodeTiled", nothing, override=True)


def _toolkit() -> Path:
    """A folder that looks like a CUDA toolkit, of links to the headers of the installed wheels; made once."""
    spec = importlib.util.find_spec("nvidia.cu13")
    found = [Path(p) / "include" for p in (spec.submodule_search_locations or [])] if spec else []
    include = next((path for path in found if (path / "cuda_runtime.h").exists()), None)
    if include is None:
        raise RuntimeError("the CUDA headers are not installed: run `pip install metakernelbench[dsl]`")
    root = cache_directory() / f"cuda-{hashlib.sha256(str(include).encode()).hexdigest()[:16]}"
    for folder in (root, root / "targets" / "x86_64-linux"):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process may make it too
            (folder / "include").symlink_to(include)
    return root


def _ptx(code: Any, form: str) -> str:
    """The PTX of a device module that TVM made from CUDA source (or, where a hook compiled it, from PTX)."""
    from tvm.support import nvcc

    data = code.encode() if isinstance(code, str) else bytes(code)
    if form == "cuda":
        data = bytes(nvcc.compile_cuda(data.decode(), target_format="ptx", arch=ARCH, compiler="nvrtc"))
    elif form != "ptx":
        raise EmulatorError(f"a device module of {form} needs a GPU")
    return data.decode(errors="replace").rstrip("\0")


def _module(device: Device, ptx: str, functions: Any) -> Any:
    """A tvm-ffi module with one function per kernel."""
    import tvm_ffi

    library = ctypes.CDLL(str(tvm_ffi.libinfo.find_libtvm_ffi()))
    prefix = f"mkb{len(_alive)}_"
    for name, info in functions.items():
        callback = _Call(_Kernel(device, ptx, str(name), info, library))
        _alive.append(callback)
        symbol = ctypes.c_char_p(f"__tvm_ffi_{prefix}{name}".encode())
        _alive.append(symbol)
        library.TVMFFIEnvModRegisterSystemLibSymbol(symbol, ctypes.cast(callback, ctypes.c_void_p))
    return tvm_ffi.system_lib(prefix)


class _Kernel:
    """The C function that TVM's host code calls: the kernel's arguments, then the launch's dimensions."""

    def __init__(self, device: Device, ptx: str, name: str, info: Any, library: Any) -> None:
        self.device, self.ptx, self.name, self.library = device, ptx, name, library
        self.kinds = [str(kind) for kind in info.arg_types]
        self.tags = [str(tag) for tag in info.launch_param_tags]

    def __call__(self, this: Any, args: Any, count: int, result: Any) -> int:
        """Returns 0, or -1 with the error set for tvm-ffi to raise."""
        try:
            values = [(args[i].type_index, args[i].value) for i in range(count)]
            dims, shared, cluster = self._launch_parameters([value for _, value in values[len(self.kinds) :]])
            arguments = values[: len(self.kinds)]

            def params(sizes: list[int]) -> list[bytes]:
                return self._pack(arguments, sizes)

            self.device.launch(self.ptx, self.name, dims[:3], dims[3:], shared, params, cluster)
        except BaseException as error:  # nothing may be raised through C
            message = f"CUDA error 700 (emulated device): {error}"
            self.library.TVMFFIErrorSetRaisedFromCStr(b"RuntimeError", message.encode())
            return -1
        return 0

    def _launch_parameters(self, values: list[int]) -> tuple[Any, int, int]:
        """Grid and block as six numbers, the bytes of dynamic shared memory, and the blocks in a cluster."""
        shared = int(values[-1]) if _DYNAMIC_SHARED in self.tags else 0
        # the other tags (a cooperative launch, one that overlaps its predecessor) have no value
        given = dict(zip((tag for tag in self.tags if tag in (*_AXES, *_CLUSTER)), values, strict=False))
        cluster = math.prod(int(given.get(axis, 1)) for axis in _CLUSTER)
        return tuple(int(given.get(axis, 1)) for axis in _AXES), shared, cluster

    def _pack(self, arguments: list[tuple[int, int]], sizes: list[int]) -> list[bytes]:
        """The parameters' bytes; a float comes as a double and is narrowed to its type."""
        import numpy as np

        out = []
        for (_, value), kind, size in zip(arguments, self.kinds, sizes, strict=True):
            raw = value.to_bytes(8, "little")
            if kind.startswith("float"):
                raw = np.frombuffer(raw, np.float64).astype(f"f{size}").tobytes()
            if size > 8:  # passed by its address
                raw = ctypes.string_at(value, size)
            out.append(raw[:size])
        return out
