"""What the device ran during a call, as CUPTI's activity records say it (NVIDIA CUPTI, Activity API).

PyTorch's profiler reads the same records, but its first use in a process takes 5 s on an H200; this takes 0.05 s.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MEMCPY, MEMSET, KERNEL = 1, 2, 10  # CUpti_ActivityKind
TRANSFERS = {MEMCPY: "Memcpy ", MEMSET: "Memset "}
# offsets in CUpti_ActivityKernel9 and 10, CUpti_ActivityMemcpy6, CUpti_ActivityMemset4: CUDA 12 and 13 agree
START, END, NAME = 16, 24, 104
BUFFER_BYTES, ALIGNMENT = 1 << 21, 16
LIBRARIES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
Record = tuple[str, float]  # name of a kernel, or of a copy or fill; microseconds

_REQUEST = ctypes.CFUNCTYPE(
    None, *(ctypes.POINTER(t) for t in (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t))
)
_COMPLETE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def record(call: Callable[[], object]) -> list[Record]:
    """Run a call once and wait for the device; its kernels, copies and fills in the order of their records.

    No records where there is no CUPTI or it refuses (permission, another tool attached): not the call's fault.
    """
    import torch

    torch.cuda.synchronize()
    try:
        recorder = Recorder()
        recorder.start()
    except (OSError, RuntimeError):
        call()
        return []
    try:
        call()
        torch.cuda.synchronize()
    finally:
        recorder.stop()
    return recorder.records


class Recorder:
    """One registration with CUPTI; the buffers that it asks for are ours and live as long as this does."""

    def __init__(self) -> None:
        self.library = library()
        self.records: list[Record] = []
        self.buffers: dict[int, Any] = {}
        self.request, self.complete = _REQUEST(self._request), _COMPLETE(self._complete)

    def start(self) -> None:
        """Record from now on."""
        self._check(self.library.cuptiActivityRegisterCallbacks(self.request, self.complete), "register")
        for kind in (KERNEL, MEMCPY, MEMSET):
            self._check(self.library.cuptiActivityEnable(kind), "enable")

    def stop(self) -> None:
        """Record no more; what is recorded arrives before this returns."""
        self._check(self.library.cuptiActivityFlushAll(1), "flush")
        for kind in (KERNEL, MEMCPY, MEMSET):
            self.library.cuptiActivityDisable(kind)

    def _check(self, code: int, what: str) -> None:
        if code:
            raise RuntimeError(f"CUPTI could not {what}: result {code}")

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        memory = ctypes.create_string_buffer(BUFFER_BYTES + ALIGNMENT)
        address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
        self.buffers[address] = memory
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0

    def _complete(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        found = ctypes.c_void_p()
        following = self.library.cuptiActivityGetNextRecord
        while following(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(found)) == 0:
            self.records.extend(read(found.value or 0))


def read(address: int) -> Iterator[Record]:
    """The record at an address, where it is of a kind that is wanted."""
    kind = ctypes.c_uint32.from_address(address).value
    start, end = (ctypes.c_uint64.from_address(address + at).value for at in (START, END))
    if kind == KERNEL:
        name = ctypes.c_char_p.from_address(address + NAME).value or b"?"
        yield name.decode(errors="replace"), (end - start) / 1e3
    elif kind in TRANSFERS:
        yield TRANSFERS[kind], (end - start) / 1e3


def library() -> Any:
    """CUPTI as PyTorch's wheels bring it or the CUDA toolkit has it; raises OSError where there is none."""
    import torch

    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    packages = Path(torch.__file__).parents[1]
    for path in [
        *packages.glob("nvidia/*/lib/libcupti.so*"),
        Path("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"),
    ]:
        if path.exists():
            return ctypes.CDLL(str(path))
    raise OSError("no libcupti.so: install nvidia-cuda-cupti")
