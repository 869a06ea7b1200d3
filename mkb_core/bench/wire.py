"""What crosses between checker and runner: a page of counters, and a fixed binary report."""

import ctypes
import fcntl
import mmap
import os
import struct
from typing import NamedTuple

DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 "
    "bool float8_e8m0fnu float4_e2m1fn_x2 uint16 uint32 uint64"
).split()
CONTAINERS = ("tensor", "tuple", "list", "other")
REPORT_BYTES = 1 << 14
TEXT_BYTES = 8192
MAX_OUTPUTS, MAX_DIMS = 32, 8

# words of the page; the checker writes the first four, the runner the others
ARM, GO, ARENA, TASK, ARMED, DONE, LANDED, STATUS = range(8)
# values of TASK: an ordinary call; one that does nothing (the baseline's runner alone); one under the profiler;
# PAIR + 16 * i + j, each launch replaced by a copy of its tensor i to its tensor j; PERTURB + i, what each launch
# left in its tensor i spoiled
CALL, NOTHING, PROFILE = range(3)
PAIR, PERTURB = 0x100, 0x200
# values of STATUS
OK, LOAD_FAILED, CALL_FAILED, DEVICE_FAILED, RULE_BROKEN = range(5)

_HEAD = struct.Struct("<IIIII")  # container, number of outputs, launches, pointers, bytes of text
_OUTPUT = struct.Struct(f"<iiii{MAX_DIMS}q")  # dtype, dimensions, aliased input or -1, landed, shape


class Output(NamedTuple):
    """One returned tensor as the runner describes it; `dtype` is '?' for a dtype that is not known."""

    dtype: str
    shape: tuple[int, ...]
    alias: int
    landed: bool


class Report(NamedTuple):
    """The runner's words about one call. Hostile until the bytes in the landing buffers prove them."""

    container: str
    outputs: tuple[Output, ...]
    launches: int  # DSL launches of this call
    pointers: int  # most tensors that one of them was given
    text: str


class Page:
    """64-bit counters in memory that both processes map; one writer a word."""

    def __init__(self, fd: int, nbytes: int = mmap.PAGESIZE) -> None:
        self.map = memoryview(map_shared(fd, nbytes)).cast("B")
        self.words = self.map.cast("Q")


def memory_file(name: str, nbytes: int) -> int:
    """An anonymous file of this size, as a file descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    # a runner that shrinks it would kill whoever reads it
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def map_shared(fd: int, nbytes: int) -> "ctypes.Array[ctypes.c_uint8]":
    """Map a file for good. Unlike the mmap module this keeps no descriptor that a submission could open again."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    address = libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "cannot map shared memory")
    return (ctypes.c_uint8 * nbytes).from_address(address)


def pack(report: Report) -> bytes:
    """The report in its fixed binary form, text cut to 8 KiB."""
    text = report.text.encode(errors="replace")[:TEXT_BYTES]
    outputs = report.outputs[:MAX_OUTPUTS]
    body = _HEAD.pack(
        CONTAINERS.index(report.container), len(outputs), report.launches, report.pointers, len(text)
    )
    for output in outputs:
        shape = (*output.shape[:MAX_DIMS], *[0] * (MAX_DIMS - len(output.shape)))
        code = DTYPES.index(output.dtype) if output.dtype in DTYPES else -1
        body += _OUTPUT.pack(code, len(output.shape), output.alias, output.landed, *shape)
    return body + text


def unpack(data: bytes) -> Report:
    """Read a report written by an untrusted process: every index and length is bounded first."""
    container, count, launches, pointers, length = _HEAD.unpack_from(data)
    count, length = min(count, MAX_OUTPUTS), min(length, TEXT_BYTES)
    outputs = []
    for i in range(count):
        code, dims, alias, landed, *shape = _OUTPUT.unpack_from(data, _HEAD.size + i * _OUTPUT.size)
        dtype = DTYPES[code] if 0 <= code < len(DTYPES) else "?"
        outputs.append(Output(dtype, tuple(shape[: max(0, min(dims, MAX_DIMS))]), alias, bool(landed)))
    start = _HEAD.size + count * _OUTPUT.size
    text = data[start : start + length].decode(errors="replace")
    return Report(CONTAINERS[min(container, 3)], tuple(outputs), launches, pointers, text)
