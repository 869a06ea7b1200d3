"""The untrusted process: loads a kernel, calls it when told, and lands what it returns."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkb_core.bench import wire
from mkb_core.bench.arena import Arena, arena_class, typed
from mkb_core.bench.forkserver import receive
from mkb_core.bench.launches import Launches, watch
from mkb_core.bench.problems import load_module

Tensors = list[Any]
GPU_PAGE = 1 << 21  # bytes


def preload(dsl: str, device: str) -> Launches:
    """What the fork server imports once: torch and the DSL, with its launches under watch."""
    return watch(dsl, device)


def eager_settings() -> None:
    """Float32 products in true float32, bfloat16 products accumulated in float32: reference, anchor, baseline."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def main(channel: socket.socket, message: dict[str, Any], launches: Launches) -> None:
    """Serve calls until the checker closes the channel or kills this process."""
    private_directories(Path(message["directory"]))
    setup, fds = receive(channel)
    if setup is None:
        return
    if setup["part"] == "baseline":
        eager_settings()
    if setup["part"] == "policy":
        launches.suppress()
    runner = Runner(setup, fds, launches)
    channel.send(b"ready")  # whatever fails from here on is the submission's doing
    try:
        name = "reference" if setup["part"] == "baseline" else "solve"
        function = getattr(load_module(Path(message["source"]), "kernel"), name)
    except BaseException:
        runner.report(wire.LOAD_FAILED, explain())
        channel.send(b"0")
        return
    channel.send(b"1")
    runner.serve(function)


def private_directories(directory: Path) -> None:
    """Give this process its own temporary, home and cache directories, so that no build cache is shared."""
    os.chdir(directory)
    for name, sub in (
        ("TMPDIR", "tmp"),
        ("HOME", "home"),
        ("XDG_CACHE_HOME", "cache"),
        ("CUTE_DSL_CACHE_DIR", "cache/cute"),
        ("CUTE_DSL_DUMP_DIR", "cache/dump"),
    ):
        path = directory / sub
        path.mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(path)


def explain() -> str:
    """The exception being handled, as a short text: its last frames in kernel.py, and the message."""
    kind, value, trace = sys.exc_info()
    if isinstance(value, SyntaxError):
        return "".join(traceback.format_exception_only(value)).strip()
    frames = [f for f in traceback.extract_tb(trace) if f.filename.endswith("kernel.py")]
    where = "".join(traceback.format_list(frames[-3:])).replace(f"{Path.cwd()}/", "")
    text = "".join(traceback.format_exception_only(kind, value))
    return (where + text[-2500:]).strip()


class Runner:
    """Maps the arenas, then answers ARM and GO with ARMED, DONE and LANDED."""

    def __init__(self, setup: dict[str, Any], fds: list[int], launches: Launches) -> None:
        import torch

        self.torch, self.launches = torch, launches
        self.cuda = setup["device"] == "cuda"
        # the C functions themselves, taken before the submission is loaded: it may replace torch's Python ones
        self.sync: Callable[[], None] = torch._C._cuda_synchronize if self.cuda else lambda: None
        self.copy_into, self.plain = torch._C.TensorBase.copy_, torch._C.DisableTorchFunction
        self.modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
        self.depth = self.mode_depth()
        if self.cuda:
            torch.zeros(1, device="cuda")  # makes the context that mapping the arenas needs
        self.page = wire.Page(fds[0])
        self.paper = wire.Page(fds[1], wire.REPORT_BYTES)
        self.specs = setup["outputs"]
        make, rest = arena_class(setup["device"]), iter(fds[2:])
        self.arenas: list[Arena] = []

        def tensors(specs: list[dict[str, Any]]) -> Tensors:
            found = []
            for spec in specs:
                self.arenas.append(make(next(rest), spec["nbytes"]))
                memory = self.arenas[-1].bytes()
                found.append(typed(memory, spec["dtype"], tuple(spec["shape"])))
            return found

        self.inputs = [tensors(setup["inputs"]) for _ in range(setup["sets"])]
        self.scalars: dict[str, Any] = setup["scalars"]
        self.landing = tensors(self.specs)
        for fd in fds:
            os.close(fd)
        self.pages = [arena.bytes()[::GPU_PAGE] for arena in self.arenas] if self.cuda else []

    def serve(self, function: Callable[..., Any]) -> None:
        """One call after the other; the checker ends this by killing the process."""
        words = self.page.words
        number = 0
        while True:
            number += 1
            while words[wire.ARM] != number:
                time.sleep(0.0002)
            arguments = self.arguments(words[wire.ARENA])
            self.launches.begin(words[wire.PAIR], self.specs[0]["nbytes"])
            self.arm()
            words[wire.ARMED] = number
            while words[wire.GO] != number:
                if not self.cuda:
                    time.sleep(0.0002)
            try:
                result = function(*arguments)
                self.sync()
                if self.launches.error():
                    raise RuntimeError(self.launches.error())
                if self.mode_depth() != self.depth:
                    raise RuntimeError("solve left a torch function or dispatch mode entered")
            except BaseException:
                status = wire.DEVICE_FAILED if self.launches.error() else wire.CALL_FAILED
                self.report(status, self.launches.error() or explain())
                words[wire.DONE] = words[wire.LANDED] = number
                continue
            launched = self.launches.count
            words[wire.DONE] = number
            try:
                with self.plain():
                    self.land(result, arguments, launched)
            except BaseException:
                self.report(wire.OK, f"a value that cannot be copied ({explain()})", count=launched)
            words[wire.LANDED] = number

    def mode_depth(self) -> tuple[int, ...]:
        """How many torch modes are entered; one left behind could do the work while the outputs are copied."""
        return tuple(length() for length in self.modes)

    def arm(self) -> None:
        """Work that nobody times: the first after another process used the GPU pays for the switch.

        Reading one byte of every page brings the addresses of the arenas back into the GPU's translation caches,
        and no more of their contents than a cache line each.
        """
        for pages in self.pages:
            pages.sum()
        self.sync()

    def arguments(self, arena: int) -> Tensors:
        """Fresh tensor objects over the memory of one set, in the order of the reference's parameters."""
        tensors = iter(self.inputs[arena])
        count = len(self.inputs[arena]) + len(self.scalars)
        return [self.scalars[str(i)] if str(i) in self.scalars else next(tensors).detach() for i in range(count)]

    def land(self, result: Any, arguments: Tensors, launched: int) -> None:
        """Copy what came back into the landing buffers and describe it."""
        kind = {self.torch.Tensor: "tensor", tuple: "tuple", list: "list"}.get(type(result), "other")
        values = [result] if kind == "tensor" else list(result)[: wire.MAX_OUTPUTS] if kind != "other" else []
        outputs = []
        for i, value in enumerate(values):
            if type(value) is not self.torch.Tensor:
                outputs.append(wire.Output("?", (), -1, False))
                continue
            landed = i < len(self.landing) and self.copy(value, self.landing[i])
            outputs.append(
                wire.Output(
                    str(value.dtype).removeprefix("torch."),
                    tuple(value.shape),
                    next((k for k, a in enumerate(arguments) if _same_memory(a, value)), -1),
                    landed,
                )
            )
        self.sync()
        text = "" if kind != "other" else str(type.__dict__["__name__"].__get__(type(result)))
        self.report(wire.OK, text, kind, tuple(outputs), launched)

    def copy(self, value: Any, landing: Any) -> bool:
        """Land one tensor if it is of the declared shape, dtype and device."""
        fits = (value.shape, value.dtype, value.device) == (landing.shape, landing.dtype, landing.device)
        fits = fits and value.layout == self.torch.strided and not value.is_nested and _backed(value)
        if fits:
            self.copy_into(landing, value.detach())
        return bool(fits)

    def report(
        self,
        status: int,
        text: str,
        container: str = "other",
        outputs: tuple[wire.Output, ...] = (),
        count: int | None = None,
    ) -> None:
        """Write the report; STATUS last, so that the checker never reads half of one."""
        count = self.launches.count if count is None else count
        report = wire.Report(container, outputs, count, self.launches.pointers, text)
        data = wire.pack(report)
        self.paper.map[: len(data)] = data
        self.page.words[wire.STATUS] = status


def _same_memory(argument: Any, value: Any) -> bool:
    return hasattr(argument, "data_ptr") and value.numel() > 0 and argument.data_ptr() == value.data_ptr()


def _backed(value: Any) -> bool:
    """Whether the storage really holds every element that the tensor claims."""
    last = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return bool(value.numel() == 0 or (last + 1) * value.element_size() <= value.untyped_storage().nbytes())
