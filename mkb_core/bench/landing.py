"""Copies what a call returned into the buffers that the checker reads, and describes it."""

from typing import Any

from mkb_core.bench import wire

MOST_ELEMENTS = 1 << 33  # of a strided tensor that is made contiguous; a view may claim any size


class Landing:
    """Takes torch's C methods before the submission is loaded, which may replace the Python ones."""

    def __init__(self, buffers: list[Any]) -> None:
        import torch

        base = torch._C.TensorBase
        self.tensor, self.strided, self.buffers = torch.Tensor, torch.strided, buffers
        self.copy_into, self.detach, self.numel, self.stride = base.copy_, base.detach, base.numel, base.stride
        self.data_ptr, self.element_size = base.data_ptr, base.element_size
        self.offset, self.storage = base.storage_offset, base.untyped_storage
        self.is_contiguous, self.contiguous = base.is_contiguous, base.contiguous

    def collect(self, result: Any) -> tuple[str, list[Any]]:
        """Container and values, strided tensors made contiguous: part of the call, so that landing takes the same
        time for everybody."""
        kind = {self.tensor: "tensor", tuple: "tuple", list: "list"}.get(type(result), "other")
        values = [result] if kind == "tensor" else list(result)[: wire.MAX_OUTPUTS] if kind != "other" else []
        return kind, [self.contiguous(v) if self.is_strided(v) else v for v in values]

    def is_strided(self, value: Any) -> bool:
        """Whether a dense copy would be another tensor; of what is no plain tensor `output` judges."""
        plain = type(value) is self.tensor and value.layout == self.strided and not value.is_nested
        return plain and not self.is_contiguous(value) and self.backed(value) and self.numel(value) < MOST_ELEMENTS

    def land(self, values: list[Any], arguments: list[Any]) -> tuple[wire.Output, ...]:
        """Copy the values into the buffers and describe each."""
        return tuple(self.output(i, value, arguments) for i, value in enumerate(values))

    def output(self, i: int, value: Any, arguments: list[Any]) -> wire.Output:
        """Land the i-th value where it is a tensor of the declared shape, dtype and device."""
        if type(value) is not self.tensor:
            return wire.Output("?", (), -1, False)
        landed = i < len(self.buffers) and self.fits(value, self.buffers[i])
        if landed:
            self.copy_into(self.buffers[i], self.detach(value))
        alias = next((k for k, argument in enumerate(arguments) if self.same_memory(argument, value)), -1)
        return wire.Output(str(value.dtype).removeprefix("torch."), tuple(value.shape), alias, landed)

    def fits(self, value: Any, buffer: Any) -> bool:
        """Of the buffer's shape, dtype and device, dense, and with a storage that holds all that it claims."""
        same = (value.shape, value.dtype, value.device) == (buffer.shape, buffer.dtype, buffer.device)
        return bool(same and value.layout == self.strided and not value.is_nested and self.backed(value))

    def backed(self, value: Any) -> bool:
        """Whether the storage really holds every element."""
        last = self.offset(value) + sum((n - 1) * s for n, s in zip(value.shape, self.stride(value), strict=True))
        held = self.storage(value).nbytes()
        return bool(self.numel(value) == 0 or (last + 1) * self.element_size(value) <= held)

    def same_memory(self, argument: Any, value: Any) -> bool:
        """Whether an argument begins where the value does."""
        tensor = isinstance(argument, self.tensor) and self.numel(value) > 0
        return tensor and bool(self.data_ptr(argument) == self.data_ptr(value))
