"""Which device this machine has."""

from pathlib import Path

from mkb_core.bench.verdict import Device


def has_gpu() -> bool:
    """Whether an NVIDIA device is there; looks at device nodes, so that nothing is initialised."""
    return any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg"))


def default_device() -> Device:
    """`cuda` where there is a GPU, else `emulated`."""
    return "cuda" if has_gpu() else "emulated"
