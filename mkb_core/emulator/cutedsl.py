"""CuTe DSL 4.8.1 on the emulated device: its runtime symbols, its PTX, and CPU tensors in its calls."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from ..shim import shared_library
from .device import Device
from .errors import EmulatorError
from .lanes import MULTIPROCESSORS

ARCH = "sm_90a"
_ILLEGAL_ADDRESS = 700  # the CUDA error code of a failed launch
_FATBIN_MAGIC = 0xBA55ED50
_Dims = ctypes.POINTER(ctypes.c_uint32)
_Load = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p)
_Launch = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_ssize_t,
    ctypes.c_char_p,
    _Dims,
    _Dims,
    ctypes.c_uint64,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_void_p),
)


class _Modules:
    """Compiled modules: which PTX belongs to the machine code that the DSL's host code loads."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.compiled: list[tuple[bytes, str]] = []  # machine code, PTX
        self.loaded: list[str] = []
        self.callbacks = (_Load(self.load), _Launch(self.launch))  # the C side keeps pointers to them

    def load(self, image: int) -> int:
        """Callback: the number of the module whose fat binary lies at `image`, 0 where it is unknown."""
        code = _fat_binary(image)
        found = next((ptx for cubin, ptx in reversed(self.compiled) if cubin in code), None)
        if found is None:
            self.device.error = self.device.error or EmulatorError(
                "a module that was not compiled in this process"
            )
            return 0
        self.loaded.append(found)
        return len(self.loaded)

    def launch(self, module: int, name: bytes, grid: Any, block: Any, shared: int, cluster: int, args: Any) -> int:
        """Callback: run a kernel; a CUDA error code where it fails."""
        try:
            ptx, dims = self.loaded[module - 1], ((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]))
            self.device.launch(ptx, name.decode(), *dims, shared, lambda sizes: _params(args, sizes), cluster)
        except EmulatorError:
            return _ILLEGAL_ADDRESS
        except BaseException:  # nothing may be raised through C
            traceback.print_exc(file=sys.stderr)
            return _ILLEGAL_ADDRESS
        return 0


def _params(args: Any, sizes: list[int]) -> list[bytes]:
    return [ctypes.string_at(args[i], size) for i, size in enumerate(sizes)]


def _fat_binary(image: int) -> bytes:
    """The fat binary at an address: its header (16 bytes) holds the length of the rest."""
    header = ctypes.string_at(image, 16)
    if int.from_bytes(header[:4], "little") != _FATBIN_MAGIC:
        return b""
    return ctypes.string_at(image, 16 + int.from_bytes(header[8:], "little"))


def install(device: Device) -> None:
    """Set the environment, import the DSL and patch it.

    Raises:
        RuntimeError: The shim can not be built (no C compiler).
    """
    shim = shared_library(Path(__file__).with_name("cute_runtime.c"))
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("nvidia-cutlass-dsl is not installed: run `pip install metakernelbench[dsl]`")
    runtime = Path(next(iter(spec.submodule_search_locations))) / "cu13" / "lib" / "libcute_dsl_runtime.so"
    os.environ["CUTE_DSL_ARCH"] = ARCH
    os.environ["CUTE_DSL_LIBS"] = f"{shim}:{runtime}"
    os.environ["CUTE_DSL_DISABLE_FILE_CACHING"] = "1"  # a module from the cache would come without its PTX
    modules = _Modules(device)
    ctypes.CDLL(str(shim)).mkb_set_callbacks(*modules.callbacks)
    _keep_ptx(modules)
    _describe_hardware()


def _keep_ptx(modules: _Modules) -> None:
    """Have every compilation write its PTX and machine code, and keep both in memory."""
    from cutlass.base_dsl.compiler import Compiler

    original = Compiler.compile

    def compile(self: Any, module: Any, pipeline: str, *args: Any, **kwargs: Any) -> Any:
        # from the environment at this moment: a child of fork may have got a directory of its own
        with tempfile.TemporaryDirectory(prefix="mkb-ptx-", dir=os.environ.get("TMPDIR")) as folder:
            options = {"ptx": "dump-ptx-path", "cubin": "dump-cubin-path"}
            added = [f"{option}='{folder}/kernel' " for option in options.values() if option not in pipeline]
            marked = pipeline.replace("cubin-format=bin ", "cubin-format=bin " + "".join(added))
            result = original(self, module, marked, *args, **kwargs)
            ptx, cubin = (_dumped(marked, option, suffix) for suffix, option in options.items())
            if ptx and cubin:
                modules.compiled.append((cubin.read_bytes(), ptx.read_text(errors="replace").rstrip("\0")))
        return result

    setattr(Compiler, "compile", compile)  # noqa: B010  mypy refuses the plain assignment


def _dumped(pipeline: str, option: str, suffix: str) -> Path | None:
    """The newest file that a dump option of the pipeline has written; None for a module without kernels."""
    stem = Path(pipeline.partition(f"{option}='")[2].partition("'")[0])
    found = sorted(stem.parent.glob(f"{stem.name}.*.{suffix}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _describe_hardware() -> None:
    """One device, and what persistent kernels ask of it, without asking a driver."""
    import cutlass.cute.runtime  # noqa: F401  a submission finds the whole DSL imported
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
    from cutlass.utils import HardwareInfo

    setattr(CudaDialectJitCompiledFunction, "num_devices", 1)  # noqa: B010
    answers = {
        "__init__": None,
        "get_max_active_clusters": MULTIPROCESSORS,
        "get_device_multiprocessor_count": MULTIPROCESSORS,
        "get_l2_cache_size_in_bytes": 62_914_560,
    }
    for name, answer in answers.items():
        setattr(HardwareInfo, name, lambda self, *args, answer=answer, **kwargs: answer)
