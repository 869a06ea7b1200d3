"""Which device this machine has, and whether it is fit to be measured on."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from mkb_core.config import Record

Device = Literal["cuda", "emulated"]

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). Idle (1) and application clocks (2) are no throttling.
REASONS = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# Heat, supply and their emergency brake are faults of the host. A power cap is not: a heavy kernel meets it on a
# healthy card, and then the cap is part of how fast that kernel is.
FAULTY = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
MEMORY_MB = 1024.0  # a bare context takes about half of it; whoever works on the GPU holds more
CLOCK_SHARE = 0.7  # an H200 runs any load but a power-capped one at its full 1,980 MHz; others have less
LOAD_CYCLES = 500_000_000  # a quarter of a second at 2 GHz: longer than a reading takes
PROBE_BYTES = 64 << 20  # larger than any L2 cache, so that the pattern comes back from memory


class GpuState(Record):
    """What NVML says of the GPU at one moment; what it does not say is None.

    Clocks are MHz, memory MiB, utilisation percent of the last sample period. `own_mb` and `others_mb` are what
    the verdict's processes and all others hold; `others` are the pids of the latter, None where NVML lists pids of
    another namespace or hides them. `under_load` says that a kernel of ours ran during the whole reading.
    """

    name: str | None = None
    uuid: str | None = None
    driver: str | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None
    celsius: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    throttle: list[str] | None = None
    used_mb: float | None = None
    own_mb: float | None = None
    others_mb: float | None = None
    others: list[int] | None = None
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded
    utilisation: int | None = None
    under_load: bool = False


class GpuLimits(Record):
    """When a GPU is not fit: MiB that others or nobody may hold, and the share of the largest clock under load."""

    memory_mb: float = MEMORY_MB
    clock_share: float = CLOCK_SHARE


def has_gpu() -> bool:
    """Whether an NVIDIA device is there; looks at device nodes, so that nothing is initialised."""
    return any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg"))


def default_device() -> Device:
    """`cuda` where there is a GPU, else `emulated`."""
    return "cuda" if has_gpu() else "emulated"


def read_state(own: Collection[int] = ()) -> GpuState | None:
    """The state of CUDA's first visible device, None where NVML or the driver is absent; makes no CUDA context.

    `own` are the pids of the processes that belong to the verdict.
    """
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # no package, no library, no driver: all mean that nothing can be known
        return None
    try:
        handle = _handle(nvml)
        return None if handle is None else GpuState(**_facts(nvml, handle), **_processes(nvml, handle, set(own)))
    finally:
        _ask(nvml, "nvmlShutdown")


def ours() -> set[int]:
    """Pids of this machine's verifiers: a child that a fork server made has the server's command line."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"mkb_core.bench.forkserver" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def read_loaded_state(own: Collection[int] = ()) -> GpuState | None:
    """The state while a kernel of this process keeps the GPU busy, so that its clocks mean something; needs CUDA.

    Takes a quarter of a second. Call it right after other work: clocks take a while to rise from idle.
    """
    import torch

    cuda: Any = torch.cuda
    done = cuda.Event()
    cuda._sleep(LOAD_CYCLES)
    done.record()
    state = read_state(own)
    busy = not done.query()
    done.synchronize()
    return state and state.model_copy(update={"under_load": busy})


def fault(before: GpuState | None, after: GpuState | None, limits: GpuLimits | None = None) -> str:
    """Why times taken between two readings are not to be trusted, or an empty string.

    Unknown is never a fault: neither state, nor any field of one, has to be known.
    """
    limits = limits or GpuLimits()
    faults = [f for state in (before, after) if state for f in _state_faults(state, limits)]
    if before and not after:
        faults.append("the GPU can no longer be read")
    if before and after:
        faults += _changes(before, after)
    return "; ".join(dict.fromkeys(faults))  # what holds before and after is said once


def probe() -> str:
    """Compute, allocate and free something on the GPU from this process: what went wrong, or an empty string."""
    import torch

    n = 1 << 20
    try:
        total = int((3 * torch.arange(n, device="cuda") + 1).sum())
        if total != 3 * n * (n - 1) // 2 + n:
            return f"the GPU computed {total} where {3 * n * (n - 1) // 2 + n} is right"
        block = torch.full((PROBE_BYTES,), 0x5A, dtype=torch.uint8, device="cuda")
        wrong = int((block != 0x5A).sum())
        del block
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    except Exception as error:  # whatever it is, the device is unfit and this text says why
        first = next(iter(str(error).splitlines()), repr(error))
        return f"a simple computation on the GPU failed: {first}"
    return f"{wrong} of {PROBE_BYTES} bytes of GPU memory came back wrong" if wrong else ""


def _state_faults(state: GpuState, limits: GpuLimits) -> list[str]:
    """What is wrong at one moment."""
    reasons = state.throttle or []
    bad = [reason for reason in reasons if reason in FAULTY]
    found = [f"the GPU is throttled: {', '.join(bad)}"] if bad else []
    if (state.others_mb or 0) > limits.memory_mb:
        found.append(f"other processes {state.others} hold {state.others_mb:.0f} MiB of the GPU")
    if state.used_mb is not None and state.own_mb is not None:
        rest = state.used_mb - state.own_mb - (state.others_mb or 0)
        if rest > limits.memory_mb:
            found.append(f"{rest:.0f} MiB of the GPU are held by nobody that can be seen")
    clock, most = state.sm_mhz, state.max_sm_mhz
    judged = state.under_load and "sw_power_cap" not in reasons
    if judged and clock is not None and most and clock < limits.clock_share * most:
        found.append(f"the GPU runs at {clock} of {most} MHz under load")
    return found


def _changes(before: GpuState, after: GpuState) -> list[str]:
    """What must not change between two readings."""
    found = []
    if before.uuid and after.uuid and before.uuid != after.uuid:
        found.append(f"the GPU changed from {before.uuid} to {after.uuid}")
    new = sorted(set(after.others or ()) - set(before.others or ()))
    if new and before.others is not None:
        found.append(f"another process began to use the GPU: {', '.join(map(str, new))}")
    if before.ecc_errors is not None and (after.ecc_errors or 0) > before.ecc_errors:
        found.append(f"{(after.ecc_errors or 0) - before.ecc_errors} uncorrected memory errors on the GPU")
    return found


def _facts(nvml: Any, handle: Any) -> dict[str, Any]:
    """Fields of GpuState that concern the card."""

    def ask(what: str, *more: Any) -> Any:
        return _ask(nvml, f"nvmlDeviceGet{what}", handle, *more)

    def scaled(value: float | None, unit: float) -> float | None:
        return None if value is None else round(value / unit, 1)

    # the second version leaves out what the driver reserves for itself
    memory = ask("MemoryInfo", getattr(nvml, "nvmlMemory_v2", None)) or ask("MemoryInfo")
    bits = ask("CurrentClocksEventReasons")
    if bits is None:
        bits = ask("CurrentClocksThrottleReasons")  # its name until driver 535
    return {
        "name": ask("Name"),
        "uuid": ask("UUID"),
        "driver": _ask(nvml, "nvmlSystemGetDriverVersion"),
        "sm_mhz": ask("ClockInfo", nvml.NVML_CLOCK_SM),
        "memory_mhz": ask("ClockInfo", nvml.NVML_CLOCK_MEM),
        "max_sm_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "max_memory_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_MEM),
        "celsius": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "watts": scaled(ask("PowerUsage"), 1000),
        "limit_watts": scaled(ask("EnforcedPowerLimit"), 1000),
        "throttle": None if bits is None else [name for bit, name in REASONS.items() if bits & bit],
        "used_mb": scaled(getattr(memory, "used", None), 1 << 20),
        "ecc_errors": ask("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "utilisation": getattr(ask("UtilizationRates"), "gpu", None),
    }


def _processes(nvml: Any, handle: Any, own: set[int]) -> dict[str, Any]:
    """Fields of GpuState that concern who uses the card."""
    nothing_of_ours = {"own_mb": None if own else 0.0}
    listed = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    if not listed and own:  # an empty list also means that a container hides them
        return nothing_of_ours
    if listed is None or any(p.pid not in own and not _uses_gpu(p.pid) for p in listed):
        return nothing_of_ours
    others = [p for p in listed if p.pid not in own]
    return {
        "own_mb": _megabytes([p for p in listed if p.pid in own]),
        "others_mb": _megabytes(others),
        "others": sorted({p.pid for p in others}),
    }


def _uses_gpu(pid: int) -> bool:
    """Whether that pid is, in our namespace, a process with the GPU open; one that we may not inspect counts."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        return any(str(link.readlink()).startswith(("/dev/nvidia", "/dev/dxg")) for link in folder.iterdir())
    except PermissionError:
        return True
    except OSError:
        return False


def _megabytes(processes: list[Any]) -> float | None:
    """What they hold together; None where NVML does not say it of each."""
    held = [p.usedGpuMemory for p in processes]
    return None if None in held else round(sum(held) / (1 << 20), 1)


def _handle(nvml: Any) -> Any:
    """CUDA's first visible device, None where NVML has none."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return _ask(nvml, "nvmlDeviceGetHandleByUUID", first)
    return _ask(nvml, "nvmlDeviceGetHandleByIndex", int(first) if first.isdigit() else 0)


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """What NVML answers, None where it cannot: old driver, not supported on this card, no permission."""
    try:
        answer = getattr(nvml, function)(*arguments)
    except Exception:  # NVMLError has dozens of kinds, and an old package or driver lacks functions altogether
        return None
    return answer.decode() if isinstance(answer, bytes) else answer
