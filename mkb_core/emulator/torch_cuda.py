"""torch on the CPU that looks like torch with one H200: device arguments, and what kernels use of torch.cuda."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CAPABILITY = (9, 0)
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    total_memory=150_109_880_320,
    L2_cache_size=62_914_560,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65_536,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
)
_CPU = torch.device("cpu")


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return _CPU
    return _CPU if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) else value


class _Redirect(TorchFunctionMode):
    """Sends device arguments `cuda` of every torch function to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        kwargs.pop("pin_memory", None)
        if func is torch.device:
            return _on_cpu(func(*args, **kwargs))
        return func(*[_on_cpu(value) for value in args], **kwargs)


class Stream:
    """The one stream: everything on it is done when it is called."""

    cuda_stream = 0
    device = torch.device("cuda", 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Every stream is the same one."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def query(self) -> bool:
        """Nothing is ever pending."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing is ever pending."""

    def wait_event(self, event: Any) -> None:
        """Nothing is ever pending."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or Event()


class Event:
    """An event that has happened; no time passes on this device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes and ignores what torch.cuda.Event takes."""

    def record(self, stream: Any = None) -> None:
        """Nothing to record."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is ever pending."""

    def query(self) -> bool:
        """Nothing is ever pending."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds: always 0."""
        return 0.0


@contextlib.contextmanager
def _context(value: Any = None) -> Iterator[Any]:
    """Stands for `torch.cuda.device(...)` and `torch.cuda.stream(...)`."""
    yield value


def _same(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for `.cuda()` and `.pin_memory()`."""
    return tensor


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for the functions without a result."""


def install() -> None:
    """Patch torch in this process; the redirection of devices holds for the calling thread and forked children."""
    mode: Any = _Redirect()
    mode.__enter__()
    tensor: Any = torch.Tensor
    tensor.is_cuda = property(lambda self: self.device.type == "cpu")
    tensor.cuda = tensor.pin_memory = _same
    tensor.record_stream = _nothing
    stream = Stream()
    replaced: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "set_stream": lambda stream: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,  # each its own: dynamo refuses one function under two names
        "mem_get_info": lambda device=None: (PROPERTIES.total_memory,) * 2,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_properties": lambda device=None: PROPERTIES,
        "device": _context,
        "stream": _context,
        "Stream": Stream,
        "Event": Event,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
    }
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
