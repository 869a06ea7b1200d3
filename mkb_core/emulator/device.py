"""The emulated device as the DSL adapters see it: modules of kernels, launches, the first error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import EmulatorError, UnsupportedInstruction

if TYPE_CHECKING:
    from .lanes import Shape
    from .program import Program
    from .records import Kernel

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One launch: grid and block in (x, y, z), dynamic shared memory in bytes, steps taken.

    `skipped` says that it was recorded only, as `Device.suppress` was set. `pointers` are the parameters' aligned
    8-byte words that lie in the memory of a tensor, in order.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    steps: int
    skipped: bool
    pointers: tuple[int, ...]


class Tensors:
    """The tensors that crossed into the DSL: their memory is what kernels may touch."""

    def __init__(self) -> None:
        """Starts empty."""
        from .memory import GlobalMemory

        self.memory = GlobalMemory()
        self._kept: dict[tuple[int, int], Any] = {}  # (base, size) -> storage

    def add(self, tensor: Any) -> None:
        """Let kernels touch a tensor's whole storage, for as long as somebody else keeps it too."""
        storage = tensor.untyped_storage()
        span = storage.data_ptr(), storage.nbytes()
        known = span in self._kept
        self._kept[span] = storage  # perhaps another one over the same memory
        if not known:
            self.drop_unused()
            self.memory.replace(self._kept)

    def drop_unused(self) -> None:
        """Forget what nobody else keeps, so that a kernel that uses it fails."""
        import torch

        users: Callable[[int], int] = torch._C._storage_Use_Count
        used = {span: storage for span, storage in self._kept.items() if span[1] and users(storage._cdata) > 1}
        if len(used) < len(self._kept):
            self._kept = used
            self.memory.replace(used)


class Device:
    """What the harness reads, `launches` and the first `error`, and what it sets.

    With `suppress` launches are recorded only. `copy` (source, destination, nbytes) makes a suppressed launch copy
    `nbytes` between two of its pointers, given by their index; one that has not both, or no room, does nothing.
    `perturb` makes every launch that runs lose the middle half of what its pointer of that index then holds, at
    most `perturb_bytes` of it being looked at.
    """

    def __init__(self, *, seed: int | None = None, max_steps: int) -> None:
        """See `mkb_core.emulator.install`."""
        self.launches: list[Launch] = []
        self.suppress = False
        self.copy: tuple[int, int, int] | None = None
        self.perturb: int | None = None
        self.perturb_bytes = 0
        self.error: EmulatorError | None = None
        self.seed, self.max_steps = seed, max_steps
        self.tensors = Tensors()
        self._kernels: dict[str, dict[str, Kernel]] = {}
        self._programs: dict[tuple[str, str], Program] = {}

    def reset(self) -> None:
        """Forget the launches and the error; what is compiled and registered stays."""
        self.launches = []
        self.error = None

    def launch(
        self, ptx: str, kernel: str, grid: Dim3, block: Dim3, shared: int, params: Params, cluster: int = 1
    ) -> None:
        """Run a kernel of a PTX module; `params` gives the parameters' bytes for their sizes.

        `cluster` is the number of blocks in a cluster.

        Raises:
            EmulatorError: The kernel failed; the first such error is kept in `error`.
        """
        from .lanes import Shape

        steps = 0
        pointers: tuple[int, ...] = ()
        try:
            self.tensors.drop_unused()
            values = params(list(self._kernel(ptx, kernel).params.values()))
            pointers = tuple(word for value in values for word in _words(value) if self.tensors.memory.room(word))
            if self.suppress:
                self._copy(pointers)
            elif cluster > 1:
                raise UnsupportedInstruction(f"a launch with clusters of {cluster} blocks", kernel)
            else:
                steps = self._run(self._program(ptx, kernel), Shape(kernel, grid, block, shared), values)
                self._perturb(pointers)
        except EmulatorError as error:
            self.error = self.error or error
            raise
        except Exception as error:  # a gap of the emulator must not pass for a result
            self.error = self.error or EmulatorError(f"kernel {kernel}: the emulator failed: {error!r}")
            raise self.error from error
        finally:
            self.launches.append(Launch(kernel, grid, block, shared, steps, self.suppress, pointers))

    def _run(self, program: Program, shape: Shape, values: list[bytes]) -> int:
        from .interpreter import launch

        return launch(program, shape, values, self.tensors.memory, seed=self.seed, max_steps=self.max_steps)

    def _copy(self, pointers: tuple[int, ...]) -> None:
        if self.copy is None:
            return
        source, destination, nbytes = self.copy
        if max(source, destination) >= len(pointers):
            return
        start, target = pointers[source], pointers[destination]
        if start != target:  # a result handed over in pieces is copied in pieces
            ctypes.memmove(target, start, min(nbytes, *map(self.tensors.memory.room, (start, target))))

    def _perturb(self, pointers: tuple[int, ...]) -> None:
        if self.perturb is None or self.perturb >= len(pointers):
            return
        start = pointers[self.perturb]
        nbytes = min(self.perturb_bytes, self.tensors.memory.room(start))
        ctypes.memset(start + nbytes // 4, 0x3C, nbytes // 2)

    def _kernel(self, ptx: str, name: str) -> Kernel:
        if ptx not in self._kernels:
            from .ptx import parse

            self._kernels[ptx] = parse(ptx)
        if name not in self._kernels[ptx]:
            raise EmulatorError(f"kernel {name} is not in its module, which has {', '.join(self._kernels[ptx])}")
        return self._kernels[ptx][name]

    def _program(self, ptx: str, name: str) -> Program:
        if (ptx, name) not in self._programs:
            from .program import Program

            self._programs[ptx, name] = Program(self._kernel(ptx, name))
        return self._programs[ptx, name]


def _words(value: bytes) -> list[int]:
    return [int.from_bytes(value[i : i + 8], "little") for i in range(0, len(value) - 7, 8)]


Params = Callable[[list[int]], list[bytes]]
