"""The untrusted process: loads a kernel, calls it when told, and lands what it returns."""

import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkb_core.bench import box, wire
from mkb_core.bench.arena import Arena, arena_class, typed
from mkb_core.bench.forkserver import receive
from mkb_core.bench.landing import Landing
from mkb_core.bench.launches import Launches, watch
from mkb_core.bench.problems import load_module

Tensors = list[Any]
GPU_PAGE = 1 << 21  # bytes
AWAKE_SECONDS = 0.02
MEMORY_SHARE = 0.4  # of the device's memory that one runner may allocate: the checker needs the rest


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
    home = Path(message["directory"])
    source = (home / "source").read_bytes()
    home = box.enter(home, message["number"], socket.socket(fileno=message["report"]))
    private_directories(home)
    kernel = home / "kernel.py"
    kernel.write_bytes(source)
    setup, fds = receive(channel)
    if setup is None:
        return
    if setup["function"] == "reference":
        eager_settings()
    if setup["suppressed"]:
        launches.suppress()
    runner = Runner(setup, fds, launches)
    channel.send(b"ready")  # whatever fails from here on is the submission's doing
    try:
        name = setup["function"]
        for told in (message, setup):  # a submission could find them, and with them what this process is for
            told.clear()
        function = getattr(load_module(kernel, "kernel"), name)
    except BaseException:
        runner.report(wire.LOAD_FAILED, explain())
        channel.send(b"0")
        return
    channel.send(b"1")
    runner.serve(function)


def private_directories(directory: Path) -> None:
    """Give this process its own temporary, home and cache directories, so that no build cache is shared."""
    os.chdir(directory)
    tempfile.tempdir = str(directory / "tmp")  # or it would be what the fork server's was
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
        self.plain, self.fresh = torch._C.DisableTorchFunction, torch._C.TensorBase.detach
        self.modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
        if self.cuda:
            torch.zeros(1, device="cuda")  # makes the context that mapping the arenas needs
            torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
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
        buffers = tensors(self.specs)
        self.landing = Landing(buffers)
        for fd in fds:
            os.close(fd)
        form: dict[str, Callable[[Tensors], Any]] = {"tensor": lambda only: only[0], "tuple": tuple, "list": list}
        self.blank = form[setup["container"]]([torch.zeros_like(t) for t in buffers])
        self.text, self.thorough = "", True
        self.pages = [arena.bytes()[::GPU_PAGE] for arena in self.arenas] if self.cuda else []

    def serve(self, function: Callable[..., Any]) -> None:
        """One call after the other; the checker ends this by killing the process."""
        words = self.page.words
        number = 0
        while True:
            number += 1
            self.wait_for(number)
            task = words[wire.TASK]
            call = self.nothing if task == wire.NOTHING else function
            arguments = self.arguments(words[wire.ARENA])
            self.thorough = number <= 2 or number % 16 == 0 or task != wire.CALL
            self.prepare(task)
            # a default device set at import is a function mode; no dispatch mode is allowed
            depth = self.mode_depth()[0], 0
            self.arm()
            words[wire.ARMED] = number
            while words[wire.GO] != number:
                if not self.cuda:
                    time.sleep(0.0002)
            try:
                result = self.profiled(call, arguments) if task == wire.PROFILE else call(*arguments)
                kind, values = self.landing.collect(result)
                self.sync()
                if self.launches.error():
                    raise RuntimeError(self.launches.error())
                if self.mode_depth() != depth:
                    raise RuntimeError("solve left a torch function or dispatch mode entered")
            except BaseException:
                status = wire.DEVICE_FAILED if self.launches.error() else wire.CALL_FAILED
                self.report(*self.violation() or (status, self.launches.error() or explain()))
                words[wire.DONE] = words[wire.LANDED] = number
                continue
            launched = self.launches.count
            words[wire.DONE] = number
            try:
                with self.plain():
                    self.land(result, kind, values, arguments, launched)
            except BaseException:
                self.report(wire.OK, f"a value that cannot be copied ({explain()})", count=launched)
            words[wire.LANDED] = number

    def wait_for(self, number: int) -> None:
        """Wait for ARM: awake for as long as a block of calls needs, then asleep, to leave the cores to others."""
        words, asleep = self.page.words, time.perf_counter() + AWAKE_SECONDS
        while words[wire.ARM] != number:
            if not self.cuda or time.perf_counter() > asleep:
                time.sleep(0.0002)

    def prepare(self, task: int) -> None:
        """Tell the watch over launches what this call is for."""
        copy = task - wire.PAIR + 1 if wire.PAIR <= task < wire.PERTURB else 0
        self.launches.begin(copy, self.specs[0]["nbytes"])
        self.launches.perturb(task - wire.PERTURB if task >= wire.PERTURB else None)
        self.text = ""

    def nothing(self, *arguments: Any) -> Any:
        """What a call that does nothing returns: buffers of the right form that are already there."""
        return self.blank

    def profiled(self, call: Callable[..., Any], arguments: Tensors) -> Any:
        """One call under the profiler; what it saw goes with the report."""
        from mkb_core.bench.devicekernels import profile
        from mkb_core.bench.policy import write_profile

        kept: list[Any] = []
        seen = profile(lambda: kept.append(call(*arguments)))
        self.text = write_profile(seen, self.launches.names())
        return kept[0]

    def violation(self) -> tuple[int, str] | None:
        """Status and text where this process did what no rule allows."""
        found = self.launches.violations(self.thorough)
        return (wire.RULE_BROKEN, f"rule `{found[0][0]}`: {found[0][1]}") if found else None

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
        return [
            self.scalars[str(i)] if str(i) in self.scalars else self.fresh(next(tensors)) for i in range(count)
        ]

    def land(self, result: Any, kind: str, values: Tensors, arguments: Tensors, launched: int) -> None:
        """Copy what came back into the landing buffers and describe it."""
        outputs = self.landing.land(values, arguments)
        text = "" if kind != "other" else str(type.__dict__["__name__"].__get__(type(result)))
        self.sync()
        status, text = self.violation() or (wire.OK, text or self.text)
        self.report(status, text, kind, outputs, launched)

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
