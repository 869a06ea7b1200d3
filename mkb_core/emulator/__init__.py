"""An emulated CUDA device: kernels of CuTe DSL and TIRx run on a machine without a GPU, a driver or nvcc.

The PTX that the DSL really produces is interpreted in NumPy, all threads at once. Results are those of the device
up to the last bit of some operations; time means nothing here.
"""

from __future__ import annotations

from .device import Device, Launch
from .errors import Deadlock, EmulatorError, MemoryFault, StepLimit, UnsupportedInstruction

__all__ = [
    "Deadlock",
    "Device",
    "EmulatorError",
    "Launch",
    "MemoryFault",
    "StepLimit",
    "UnsupportedInstruction",
    "install",
]

MAX_STEPS = 1_000_000  # an RMSNorm takes about 200


def install(dsl: str, *, seed: int | None = None, max_steps: int = MAX_STEPS) -> Device:
    """Make this process run the kernels of one DSL on the emulated device, and import the DSL.

    Call it once, in a fresh process, before anything imports the DSL. The process may fork afterwards; a child has
    its own copy of the device. A launch that fails returns a CUDA error to the DSL, and `Device.error` says why.

    Args:
        dsl: `cutedsl` or `tirx`.
        seed: With one, the warps of a block take turns in random order, which shows missing barriers.
        max_steps: A launch that takes more steps (instructions of a group of threads) is stopped.

    Raises:
        ValueError: For another DSL.
        RuntimeError: The DSL is imported already, or the shim of CuTe DSL can not be built.
    """
    import importlib
    import sys

    imported_as = {"cutedsl": "cutlass", "tirx": "tvm"}
    if dsl not in imported_as:
        raise ValueError(f"unknown DSL {dsl!r}: cutedsl or tirx")
    if imported_as[dsl] in sys.modules:
        raise RuntimeError(f"{imported_as[dsl]} was imported before the emulated device was installed")
    device = Device(seed=seed, max_steps=max_steps)
    from . import exchange, torch_cuda

    torch_cuda.install()
    importlib.import_module(f".{dsl}", __name__).install(device)
    exchange.install(device.tensors)
    return device
