"""The DSL's kernel launches of one process: counted, named, suppressed, perturbed, or replaced by a copy."""

import ctypes
import importlib
import importlib.util
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mkb_core.bench import guard_tirx
from mkb_core.bench.guard import Finding, Guard, install

if TYPE_CHECKING:
    from mkb_core.emulator import Device

IMPORTS = {"cutedsl": "cutlass.cute", "tirx": "tvm"}
# the checker's environment, and the runner's beyond what the launcher's own process needs
KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "MKB_CACHE",
    "TMPDIR",
)


class Launches(Protocol):
    """What a runner knows of the launches of its current call.

    `count`, `pointers` and `names` are of that call alone, `violations` of the whole process.
    """

    @property
    def count(self) -> int: ...  # noqa: D102
    @property
    def pointers(self) -> int: ...  # noqa: D102
    def begin(self, pair: int, nbytes: int) -> None: ...  # noqa: D102
    def suppress(self) -> None: ...  # noqa: D102
    def perturb(self, index: int | None) -> None: ...  # noqa: D102
    def names(self) -> dict[str, int]: ...  # noqa: D102
    def violations(self, thorough: bool) -> list[Finding]: ...  # noqa: D102
    def error(self) -> str: ...  # noqa: D102


def split(pair: int) -> tuple[int, int]:
    """Source and destination of a pair code, 1 + 16 * source + destination; (0, 0) means no copy."""
    return divmod(pair - 1, 16) if pair else (0, 0)


class CudaLaunches:
    """On a GPU: the library of launches.c, preloaded into this process."""

    def __init__(self, guard: Guard | None = None) -> None:
        library = ctypes.CDLL(None)
        self.guard = guard
        self._begin, self._suppress, self._perturb = library.mkb_begin, library.mkb_suppress, library.mkb_perturb
        self._begin.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_uint64)
        self._count, self._pointers = library.mkb_launches, library.mkb_pointers
        self._name, self._violation = library.mkb_name, library.mkb_violation
        self._failure = library.mkb_failure
        self._failure.restype = ctypes.c_char_p
        self._count.restype = self._pointers.restype = ctypes.c_uint64
        self._name.restype = self._violation.restype = ctypes.c_char_p
        self._name.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))

    @property
    def count(self) -> int:
        """Launches since `begin`."""
        return int(self._count())

    @property
    def pointers(self) -> int:
        """Most device pointers that one suppressed or perturbed launch was given since `begin`."""
        return int(self._pointers())

    def begin(self, pair: int, nbytes: int) -> None:
        """A new call; in a suppressed process, each launch copies `nbytes` between the buffers of the pair."""
        self._begin(*split(pair), nbytes)

    def suppress(self) -> None:
        """Drop every launch from now on."""
        self._suppress()

    def perturb(self, index: int | None) -> None:
        """After each launch, overwrite the middle of the buffer that is its `index`-th pointer; None: no more."""
        self._perturb(-1 if index is None else index)

    def names(self) -> dict[str, int]:
        """Kernels launched since `begin` and how often, by the driver's names, cut at 255 bytes."""
        found, count, number = {}, ctypes.c_uint64(), 0
        while (name := self._name(number, ctypes.byref(count))) is not None:
            found[name.decode(errors="replace")] = count.value
            number += 1
        return found

    def violations(self, thorough: bool) -> list[Finding]:
        """Rule and text of all that this process must not do and did, below Python and, if thorough, in the DSL.

        To compare the DSL's registries with their first state takes 12 ms for TIRx.
        """
        found, number = [], 0
        while (line := self._violation(number)) is not None:
            rule, _, text = line.decode(errors="replace").partition("\t")
            found.append((rule, text))
            number += 1
        return found + (self.guard.findings if self.guard and thorough else [])

    def error(self) -> str:
        """The first launch since `begin` that CUDA refused, or an empty string; other faults are exceptions."""
        return str(self._failure().decode(errors="replace"))


class EmulatedLaunches:
    """On the emulated device."""

    def __init__(self, device: "Device", guard: Guard | None = None) -> None:
        self.device, self.guard = device, guard

    @property
    def count(self) -> int:
        """Launches since `begin`."""
        return len(self.device.launches)

    @property
    def pointers(self) -> int:
        """Most tensors that one launch was given since `begin`."""
        return max((len(launch.pointers) for launch in self.device.launches), default=0)

    def begin(self, pair: int, nbytes: int) -> None:
        """A new call; in a suppressed process, each launch copies `nbytes` between the buffers of the pair."""
        self.device.reset()
        source, destination = split(pair)
        self.device.copy = (source, destination, nbytes) if pair else None
        self.device.perturb_bytes = nbytes

    def suppress(self) -> None:
        """Drop every launch from now on."""
        self.device.suppress = True

    def perturb(self, index: int | None) -> None:
        """After each launch, overwrite the middle of the buffer that is its `index`-th pointer; None: no more."""
        self.device.perturb = index

    def names(self) -> dict[str, int]:
        """Kernels launched since `begin` and how often."""
        return dict(Counter(launch.kernel for launch in self.device.launches))

    def violations(self, thorough: bool) -> list[Finding]:
        """Rule and text of what the DSL was made to do beside its language."""
        return self.guard.findings if self.guard and thorough else []

    def error(self) -> str:
        """The emulator's own account of a failed launch, or an empty string."""
        return str(self.device.error) if self.device.error else ""


def watch(dsl: str, device: str) -> Launches:
    """Import torch and the DSL with their launches under watch; once a process, before any submission."""
    if device == "emulated":
        from mkb_core import emulator

        emulated = emulator.install(dsl)
        return EmulatedLaunches(emulated, install(dsl))
    import torch  # noqa: F401

    importlib.import_module(IMPORTS[dsl])
    find_libraries()
    if dsl == "tirx":
        guard_tirx.rehearse()
    return CudaLaunches(install(dsl))


def find_libraries() -> None:
    """Import what looks for CUDA's libraries by starting processes, and let it find them."""
    from cuda.bindings import driver, nvrtc  # noqa: F401

    nvrtc.nvrtcVersion()


def environment(role: str, dsl: str, device: str) -> dict[str, str]:
    """The environment of a fork server: no keys, nothing of the caller's but what finds programs and packages."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    # torch must not initialise CUDA in a process that forks; with NVML it can still tell that there is a GPU
    kept |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    if role == "runner" and device == "cuda":
        from mkb_core.shim import shared_library

        library = str(shared_library(Path(__file__).with_name("launches.c")))
        kept |= {"LD_PRELOAD": library}
        if dsl == "cutedsl":
            runtime = cute_runtime()
            kept |= {"MKB_CUTE_RUNTIME": runtime, "CUTE_DSL_LIBS": f"{library}:{runtime}"}
    return kept


def cute_runtime() -> str:
    """Path of CuTe DSL's own CUDA runtime shim; raises ImportError where CuTe DSL is not installed."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("cu1*/lib/libcute_dsl_runtime.so"), reverse=True):
            return str(path)
    raise ImportError("CuTe DSL is not installed: pip install 'metakernelbench[dsl]'")
