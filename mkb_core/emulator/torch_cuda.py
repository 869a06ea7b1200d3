"""torch on the CPU that looks like torch with one H200: where tensors are, and what kernels ask of the device.

All memory is the CPU's, and a tensor says that it is on cuda:0, as the inputs that cross in do. One that was sent
to the CPU by name, and what is made of such tensors alone, says `cpu`. One made without any device says cuda:0 as
well, so that it can stand for an input. Both kinds have a mark on their storage, which views share, so that a move
to the device copies them, as it does on a GPU.
"""

from __future__ import annotations

import re
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _device

from . import torch_streams

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
    clock_rate=1_980_000,
    memory_clock_rate=3_201_000,
    memory_bus_width=6144,
    pci_bus_id=0,
    pci_device_id=0,
    pci_domain_id=0,
    is_integrated=0,
    is_multi_gpu_board=0,
    gcnArchName="NVIDIA H200",
    uuid=uuid.UUID("6d6b6265-6d75-4c61-8000-000000000000"),
)
_CPU, _CUDA = torch.device("cpu"), torch.device("cuda", 0)
_NAME = re.compile(r"(cpu|cuda)(:\d+)?")
_MARK = "_mkb_on_cpu"
# what a tensor of the device says of itself
_ANSWERS: dict[Any, Any] = {
    torch.Tensor.device.__get__: _CUDA,  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    torch.Tensor.get_device: 0,
    torch.get_device: 0,
}


class _Placement(TorchFunctionMode):
    """Sends the device arguments of every torch function to the CPU, and keeps account of where results belong.

    A mode and not a property of torch.Tensor: torch's own Python code runs beneath it and sees the CPU tensors
    that it has to deal with.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch._C._nn._parse_to:  # what Module.to asks for comes back to Tensor.to
            return func(*args, **kwargs)
        if func is torch.device:
            return func("cuda", *args) if args and _is_index(args[0]) else func(*args, **kwargs)
        if func in _ANSWERS and args:
            real = _asked_by_adapter() or args[0].device.type != "cpu" or _mark(args[0])
            return func(*args) if real else _ANSWERS[func]
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _indexed(args[1]), *args[2:])
        if "device" in kwargs:
            kwargs["device"] = _indexed(kwargs["device"])
        kwargs.pop("pin_memory", None)
        given = [*args, *kwargs.values()]
        result = func(*map(_to_cpu, args), **{name: _to_cpu(value) for name, value in kwargs.items()})
        return _placed(result, func, given)


def _asked_by_adapter() -> bool:
    """Whether the emulator itself asks, which wants the memory that a tensor really has."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_name in ("__torch_function__", _default_device.__name__):  # modes above this one
        frame = frame.f_back
    return bool(frame.f_globals.get("__package__") == __package__)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _indexed(value: Any) -> Any:
    """A device argument with an index made a device."""
    return torch.device("cuda", value) if _is_index(value) else value


def _device_of(value: Any) -> torch.device | None:
    """The device that an argument says, None for anything else."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        value = torch.device(value)
    return value if isinstance(value, torch.device) else None


def _to_cpu(value: Any) -> Any:
    device = _device_of(value)
    if device is None or device.type != "cuda":
        return value
    _only_device(device.index or 0)
    return _CPU


def _only_device(index: int) -> None:
    if index > 0:
        raise RuntimeError("CUDA error: invalid device ordinal")


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and the like
        return None


def _mark(tensor: torch.Tensor) -> bool | None:
    """True for a tensor on the CPU by name, False for one there by default, None for one of the device."""
    return getattr(_storage(tensor), _MARK, None)


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among some values, and in the lists and tuples among them."""
    nested = [part for value in values for part in (value if isinstance(value, list | tuple) else (value,))]
    return [value for value in nested if isinstance(value, torch.Tensor)]


def _placed(result: Any, func: Any, given: list[Any]) -> Any:
    """The result of a function: marked where it is on the CPU, a copy where it was moved."""
    made = _tensors([result])
    if not made:
        return result
    asked = next((device for value in given if (device := _device_of(value))), None)
    sources = _tensors(given)
    if func is torch.Tensor.cpu:
        asked = _CPU
    elif func is torch.Tensor.to and len(sources) > 1:  # x.to(other)
        asked = _CPU if _mark(sources[1]) else _CUDA
    want: bool | None = None
    if asked is not None:
        want = True if asked.type == "cpu" else None
    elif sources:
        marks = [_mark(source) for source in sources]
        want = None if None in marks else any(marks)
    elif (_device.CURRENT_DEVICE or _CPU).type == "cpu" and func in _device._device_constructors():
        want = False
    shared = {storage._cdata for source in sources if (storage := _storage(source)) is not None}
    for tensor in made:
        storage = _storage(tensor)
        if storage is None:
            continue
        if storage._cdata in shared and (_mark(tensor) is None) != (want is None):
            if asked is None or tensor is not result:  # written to in place, from the other side
                continue
            result = tensor.clone()
            storage = _storage(result)
        if want is not None:
            setattr(storage, _MARK, want)
    return result


def _default_device(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Stands for what torch's mode of a default device does, which may lie above the redirection or beneath it."""
    kwargs = kwargs or {}
    if func in _device._device_constructors() and kwargs.get("device") is None:
        stack: Any = _get_current_function_mode_stack
        above = any(isinstance(mode, _Placement) for mode in stack())
        kwargs["device"] = self.device if above else _to_cpu(self.device)
    return func(*args, **kwargs)


class Generator(torch.Generator):
    """A generator of the device: the CPU's, by another name."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        """Takes a device as `torch.Generator` does."""
        made = super().__new__(cls, _to_cpu(_indexed(device)))  # type: ignore[call-arg]
        made._named = _device_of(_indexed(device)) or _CPU
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that was asked for."""
        return _CUDA if self._named.type == "cuda" else self._named

    _named: torch.device


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for the methods without a result."""


def install() -> None:
    """Patch torch in this process; where tensors are holds for the calling thread and forked children."""
    mode: Any = _Placement()
    mode.__enter__()
    torch_streams.install()
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, device=None, non_blocking=False, memory_format=None: self.to("cuda")
    tensor.pin_memory = lambda self, device=None: self
    tensor.record_stream = _nothing
    memory = (PROPERTIES.total_memory,) * 2
    # the Python functions of torch.cuda and torch.accelerator stay, with all that they check, where what they call
    # can be replaced instead; each its own lambda, as dynamo refuses one function under two names
    replaced: dict[Any, dict[str, Any]] = {
        torch: {"Generator": Generator},
        _device.DeviceContext: {"__torch_function__": _default_device},
        torch.cuda: {
            "_initialized": True,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "mem_get_info": lambda device=None: memory,
            "default_generators": (torch.default_generator,),
            "_get_device_properties": lambda index: PROPERTIES,
            "_exchange_device": _exchange,
            "_maybe_exchange_device": lambda index: _exchange(index),
        },
        torch.cuda.random: {"device_count": lambda: 1},
        torch._C: {
            "_cuda_getDevice": lambda: 0,
            "_cuda_setDevice": lambda index: _only_device(index),
            "_cuda_synchronize": lambda: None,
            "_cuda_canDeviceAccessPeer": lambda index, peer: False,
            "_cuda_ipc_collect": lambda: None,
            "_cuda_emptyCache": lambda: None,
            "_cuda_memoryStats": lambda index: {},
            "_cuda_resetPeakMemoryStats": lambda index: None,
            "_cuda_resetAccumulatedMemoryStats": lambda index: None,
            "_cuda_getMemoryFraction": lambda index: 1.0,
            "_cuda_setMemoryFraction": lambda fraction, index: None,
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_getDeviceIndex": lambda: 0,
            "_accelerator_setDeviceIndex": lambda index: _only_device(index),
            "_accelerator_exchangeDevice": lambda index: _exchange(index),
            "_accelerator_maybeExchangeDevice": lambda index: _exchange(index),
            "_accelerator_synchronizeDevice": lambda index: None,
            "_accelerator_getMemoryInfo": lambda index: memory,
        },
    }
    for module, names in replaced.items():
        for name, value in names.items():
            setattr(module, name, value)


def _exchange(index: int) -> int:
    """Select a device: the index of the one before, -1 where nothing was asked."""
    _only_device(index)
    return 0 if index >= 0 else -1
