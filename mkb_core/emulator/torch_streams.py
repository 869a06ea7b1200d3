"""Streams and events of a device on which everything is done when it is called, in place of torch's."""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_CUDA = 1  # c10::DeviceType
_PRIORITIES = (0, -3)  # least and greatest that torch hands out
_numbers = itertools.count(1)
_selected = threading.local()


class _OfDevice:
    @property
    def device(self) -> torch.device:
        """The only device."""
        import torch

        return torch.device("cuda", 0)


class Stream(_OfDevice):
    """Stands for `torch.Stream`; two are the same stream where their ids are equal."""

    device_index = 0
    device_type = _CUDA

    def __init__(
        self, device: Any = None, *, priority: int = 0, stream_id: int | None = None, **kwargs: Any
    ) -> None:
        """A new stream, or the one of an id; id 0 is the default stream."""
        least, greatest = _PRIORITIES
        self.stream_id = next(_numbers) if stream_id is None else stream_id
        self.priority = max(greatest, min(least, priority))
        self._left: list[Stream] = []

    @property
    def cuda_stream(self) -> int:
        """The handle: nobody looks behind it, so any number that is unique will do."""
        return self.stream_id

    @property
    def native_handle(self) -> int:
        """The handle under its device-neutral name."""
        return self.stream_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stream_id)

    def __cuda_stream__(self) -> tuple[int, int]:
        """CUDA stream protocol: its version, and the handle."""
        return 0, self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return _PRIORITIES

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"

    def __enter__(self) -> Stream:
        self._left.append(current())
        select(self)
        return self

    def __exit__(self, *exc: object) -> None:
        select(self._left.pop())

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def query(self) -> bool:
        """Nothing is ever pending."""
        return True

    def is_capturing(self) -> bool:
        """No graph is captured on this device."""
        return False

    def wait_stream(self, stream: Any) -> None:
        """Nothing is ever pending."""

    def wait_event(self, event: Any) -> None:
        """Nothing is ever pending."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return CudaEvent() if event is None else event


class CudaStream(Stream):
    """Stands for `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        """As `Stream`, with the priority as a second positional argument."""
        super().__init__(device, priority=priority, **kwargs)


class ExternalStream(CudaStream):
    """Stands for `torch.cuda.ExternalStream`."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        """The stream of a handle."""
        super().__init__(device, stream_id=stream_ptr, **kwargs)


class Event(_OfDevice):
    """Stands for `torch.Event`: one that has happened, as no time passes on this device."""

    event_id = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes and ignores what torch's events take."""

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


class CudaEvent(Event):
    """Stands for `torch.cuda.Event`."""

    cuda_event = 0


_DEFAULT = CudaStream(stream_id=0)


def current() -> Stream:
    """The stream that this thread has selected."""
    stream: Stream = getattr(_selected, "stream", _DEFAULT)
    return stream


def select(stream: Stream | None) -> None:
    """Make a stream the current one of this thread; None leaves it."""
    if stream is not None:
        _selected.stream = stream


def current_cuda_stream(device: Any = None) -> CudaStream:
    """The current stream as one of `torch.cuda`, which a `torch.Stream` need not be."""
    stream = current()
    if isinstance(stream, CudaStream):
        return stream
    return CudaStream(priority=stream.priority, stream_id=stream.stream_id)


def install() -> None:
    """Replace torch's own."""
    import torch

    public: dict[Any, dict[str, Any]] = {
        torch: {"Stream": Stream, "Event": Event},
        torch.cuda: {
            "Stream": CudaStream,
            "ExternalStream": ExternalStream,
            "Event": CudaEvent,
            "current_stream": current_cuda_stream,
            "default_stream": lambda device=None: _DEFAULT,
            "get_stream_from_external": lambda data_ptr, device=None: ExternalStream(data_ptr, device),
            "set_stream": select,
        },
        torch._C: {  # beneath torch.accelerator
            "_accelerator_getStream": lambda index: current(),
            "_accelerator_setStream": lambda stream: select(stream),
        },
        torch.cuda.graphs: {"_cuda_isCurrentStreamCapturing": lambda: False},
    }
    for module, replaced in public.items():
        for name, value in replaced.items():
            setattr(module, name, value)
    torch.cuda.streams.Stream, torch.cuda.streams.Event = CudaStream, CudaEvent  # type: ignore[misc, assignment]
