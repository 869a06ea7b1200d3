"""GPU hygiene, with an NVML and a CUDA made of plain Python."""

import builtins
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mkb_core.bench import gpu
from mkb_core.bench.gpu import GpuLimits, GpuState, fault, probe, read_loaded_state, read_state

MB = 1 << 20
MINE = os.getpid()


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Answers of a healthy, idle H200; a test replaces some of them. An answer that is an exception is raised."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlMemory_v2 = 1, 0, 0x02000028

    def __init__(self, **answers):
        super().__init__("pynvml")
        self.open, self.asked = 0, []
        self.answers = {
            "HandleByIndex": "card 0",
            "HandleByUUID": "card by uuid",
            "Name": "NVIDIA H200",
            "UUID": "GPU-1",
            "ClockInfo": lambda card, kind: {1: 1965, 2: 3201}[kind],
            "MaxClockInfo": lambda card, kind: {1: 1980, 2: 3201}[kind],
            "Temperature": 41,
            "PowerUsage": 118_240,
            "EnforcedPowerLimit": 700_000,
            "CurrentClocksEventReasons": 0x3,
            "MemoryInfo": SimpleNamespace(used=600 * MB),
            "TotalEccErrors": 0,
            "UtilizationRates": SimpleNamespace(gpu=7, memory=3),
            "ComputeRunningProcesses": [],
            **answers,
        }

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        return b"580.159.04"  # older packages answer in bytes

    def __getattr__(self, name):
        what = name.removeprefix("nvmlDeviceGet")
        if what == name or what not in self.answers:
            raise AttributeError(name)

        def ask(*arguments):
            self.asked.append((what, *arguments))
            answer = self.answers[what]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return ask


@pytest.fixture
def nvml(monkeypatch):
    """Install a fake NVML with these answers."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**answers):
        fake = FakeNvml(**answers)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install


def process(pid, megabytes):
    return SimpleNamespace(pid=pid, usedGpuMemory=None if megabytes is None else megabytes * MB)


def test_a_healthy_card_is_recorded_and_has_no_fault(nvml):
    fake = nvml()
    state = read_state()
    assert state == GpuState(
        name="NVIDIA H200",
        uuid="GPU-1",
        driver="580.159.04",
        sm_mhz=1965,
        memory_mhz=3201,
        max_sm_mhz=1980,
        max_memory_mhz=3201,
        celsius=41,
        watts=118.2,
        limit_watts=700,
        throttle=[],
        used_mb=600,
        own_mb=0,
        others_mb=0,
        others=[],
        ecc_errors=0,
        utilisation=7,
    )
    assert fault(state, state) == ""
    assert GpuState.model_validate_json(state.model_dump_json()) == state
    assert fake.open == 0


def test_without_a_package_a_library_or_a_driver_nothing_is_known(nvml, monkeypatch):
    fake = nvml()
    fake.nvmlInit = lambda: (_ for _ in ()).throw(NVMLError("driver not loaded"))
    assert read_state() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises ImportError
    assert read_state({MINE}) is None
    assert fault(None, None) == ""
    assert fault(None, GpuState()) == ""


def test_what_a_card_does_not_support_is_none_and_no_fault(nvml):
    names = FakeNvml().answers.keys() - {"HandleByIndex"}
    fake = nvml(**dict.fromkeys(names, NVMLError("Not Supported")))
    state = read_state()
    assert state == GpuState(driver="580.159.04", own_mb=0)
    assert fault(state, state) == ""
    assert fake.open == 0
    nvml(HandleByIndex=NVMLError("Not Found"))
    assert read_state() is None


def test_the_real_package_has_the_names_that_are_used(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    read_state()
    for name in {f"nvmlDeviceGet{what}" for what, *_ in fake.asked} | {"nvmlDeviceGetHandleByUUID"}:
        assert callable(getattr(pynvml, name)), name
    for name, value in vars(FakeNvml).items():
        if name.startswith(("NVML_", "nvmlMemory")):
            assert getattr(pynvml, name) == value, name
    for bit, name in gpu.REASONS.items():
        words = "".join(word.capitalize() for word in name.split("_"))
        assert getattr(pynvml, f"nvmlClocksEventReason{words}") == bit


@pytest.mark.parametrize(
    ("visible", "asked"),
    [
        (None, ("HandleByIndex", 0)),
        ("", ("HandleByIndex", 0)),
        ("3", ("HandleByIndex", 3)),
        (" 2,0", ("HandleByIndex", 2)),
        ("GPU-5b,GPU-6c", ("HandleByUUID", "GPU-5b")),
        ("MIG-7d", ("HandleByUUID", "MIG-7d")),
    ],
)
def test_the_device_is_the_first_that_cuda_sees(nvml, monkeypatch, visible, asked):
    fake = nvml()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    read_state()
    assert fake.asked[0] == asked


@pytest.mark.parametrize(
    ("bits", "names", "faulty"),
    [
        (0x001, [], False),
        (0x002, [], False),
        (0x004, ["sw_power_cap"], False),
        (0x008, ["hw_slowdown"], True),
        (0x010, ["sync_boost"], False),
        (0x020, ["sw_thermal_slowdown"], True),
        (0x048, ["hw_slowdown", "hw_thermal_slowdown"], True),
        (0x084, ["sw_power_cap", "hw_power_brake_slowdown"], True),
    ],
)
def test_heat_and_power_brakes_are_faults_and_a_power_cap_is_a_fact(nvml, bits, names, faulty):
    for answers in (
        {"CurrentClocksEventReasons": bits},
        {"CurrentClocksEventReasons": NVMLError("old driver"), "CurrentClocksThrottleReasons": bits},
    ):
        nvml(**answers)
        state = read_state()
        assert state.throttle == names
        text = fault(GpuState(uuid="GPU-1"), state)
        assert bool(text) is faulty
        assert not faulty or text == f"the GPU is throttled: {', '.join(n for n in names if n != 'sw_power_cap')}"


def test_what_is_wrong_before_and_after_is_said_once():
    hot = GpuState(throttle=["hw_slowdown"])
    assert fault(hot, hot) == "the GPU is throttled: hw_slowdown"


def other(monkeypatch, pids):
    """Make these pids look like processes of this namespace with the GPU open."""
    monkeypatch.setattr(gpu, "_uses_gpu", lambda pid: pid in pids)


def test_processes_that_are_not_ours_are_faults_when_they_appear_or_hold_memory(nvml, monkeypatch):
    other(monkeypatch, {70, 71})
    nvml(
        ComputeRunningProcesses=[process(MINE, 900), process(70, 500)], MemoryInfo=SimpleNamespace(used=2000 * MB)
    )
    before = read_state({MINE})
    assert (before.own_mb, before.others_mb, before.others) == (900, 500, [70])
    assert fault(before, before) == ""  # a small one that was there all along
    nvml(
        ComputeRunningProcesses=[process(71, 3000), process(MINE, 900)], MemoryInfo=SimpleNamespace(used=4500 * MB)
    )
    after = read_state({MINE})
    assert fault(before, after) == (
        "other processes [71] hold 3000 MiB of the GPU; another process began to use the GPU: 71"
    )
    assert fault(before, after, GpuLimits(memory_mb=5000)) == "another process began to use the GPU: 71"
    assert fault(None, after, GpuLimits(memory_mb=5000)) == ""


@pytest.mark.parametrize("listed", [[process(70, 9000)], [process(MINE, 900), process(70, 9000)]])
def test_pids_of_another_namespace_are_unknown(nvml, monkeypatch, listed):
    other(monkeypatch, set())
    nvml(ComputeRunningProcesses=listed, MemoryInfo=SimpleNamespace(used=10000 * MB))
    state = read_state({MINE})
    assert (state.own_mb, state.others_mb, state.others) == (None, None, None)
    assert fault(state, state) == ""  # whose memory it is cannot be known


def test_an_empty_list_beside_processes_of_ours_is_unknown(nvml):
    nvml(ComputeRunningProcesses=[])
    state = read_state({MINE})
    assert (state.own_mb, state.others) == (None, None)


def test_memory_that_nobody_holds_is_a_fault(nvml, monkeypatch):
    nvml(MemoryInfo=SimpleNamespace(used=48 * 1024 * MB))
    assert fault(read_state(), None).startswith("49152 MiB of the GPU are held by nobody that can be seen")
    other(monkeypatch, {70})
    nvml(
        MemoryInfo=SimpleNamespace(used=4000 * MB),
        ComputeRunningProcesses=[process(MINE, 2000), process(70, 900)],
    )
    state = read_state({MINE})
    assert fault(state, state) == "1100 MiB of the GPU are held by nobody that can be seen"
    nvml(MemoryInfo=SimpleNamespace(used=4000 * MB), ComputeRunningProcesses=[process(MINE, None)])
    assert read_state({MINE}).own_mb is None
    assert fault(read_state({MINE}), None) == "the GPU can no longer be read"


def test_a_pid_counts_only_with_the_gpu_open(tmp_path, monkeypatch):
    assert not gpu._uses_gpu(1 << 30)
    for device, uses in (("/dev/nvidia0", True), ("/dev/null", False)):
        (tmp_path / "3").unlink(missing_ok=True)
        (tmp_path / "3").symlink_to(device)
        monkeypatch.setattr(gpu, "Path", lambda name: tmp_path)
        assert gpu._uses_gpu(70) is uses
    monkeypatch.setattr(gpu, "Path", lambda name: SimpleNamespace(iterdir=denied))
    assert gpu._uses_gpu(70)


def denied():
    raise PermissionError("other user's process")


def test_memory_errors_are_a_fault_when_they_grow(nvml):
    old, new = GpuState(ecc_errors=2), GpuState(ecc_errors=5)
    assert fault(old, old) == ""
    assert fault(old, new) == "3 uncorrected memory errors on the GPU"
    assert fault(GpuState(), new) == ""
    assert fault(old, GpuState()) == ""


def test_another_card_or_none_is_a_fault():
    assert fault(GpuState(uuid="GPU-1"), GpuState(uuid="GPU-2")) == "the GPU changed from GPU-1 to GPU-2"
    assert fault(GpuState(uuid="GPU-1"), None) == "the GPU can no longer be read"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"sm_mhz": 345}, ""),  # idle clocks are low
        ({"sm_mhz": 345, "under_load": True}, "the GPU runs at 345 of 1980 MHz under load"),
        ({"sm_mhz": 1300, "under_load": True, "throttle": ["sw_power_cap"]}, ""),
        ({"sm_mhz": 1755, "under_load": True}, ""),
        ({"sm_mhz": None, "under_load": True}, ""),
        ({"sm_mhz": 345, "max_sm_mhz": None, "under_load": True}, ""),
    ],
)
def test_low_clocks_are_a_fault_under_load_only(state, text):
    assert fault(None, GpuState(**{"max_sm_mhz": 1980, **state})) == text
    assert fault(None, GpuState(max_sm_mhz=1980, sm_mhz=1755, under_load=True), GpuLimits(clock_share=0.9))


class FakeCuda:
    """torch.cuda where a sleep of the device ends only when somebody waits, or at once."""

    def __init__(self, quick=False):
        self.running, self.quick = False, quick

    def Event(self):
        return SimpleNamespace(record=lambda: None, query=lambda: not self.running, synchronize=self.wait)

    def _sleep(self, cycles):
        self.running = not self.quick

    def wait(self):
        self.running = False


@pytest.mark.parametrize("quick", [False, True])
def test_a_reading_under_load_says_whether_the_load_outlasted_it(nvml, monkeypatch, quick):
    nvml()
    cuda = FakeCuda(quick)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert read_loaded_state() == read_state().model_copy(update={"under_load": not quick})
    assert not cuda.running
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_loaded_state() is None


@pytest.fixture
def cpu_as_cuda(monkeypatch):
    """torch whose `cuda` is the CPU."""
    torch = pytest.importorskip("torch")
    for name in ("arange", "full"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, real=real, **k: real(*a, **{**k, "device": "cpu"}))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return torch


@pytest.mark.dsl
def test_the_probe_finds_nothing_on_a_device_that_works(cpu_as_cuda):
    assert probe() == ""


@pytest.mark.dsl
def test_the_probe_tells_a_wrong_sum_from_wrong_memory_from_an_error(cpu_as_cuda, monkeypatch):
    torch = cpu_as_cuda
    arange, full = torch.arange, torch.full
    monkeypatch.setattr(torch, "arange", lambda *a, **k: arange(*a, **k).roll(1).clamp(min=1))
    right = 3 * 2**19 * (2**20 - 1) + 2**20
    assert probe() == f"the GPU computed {right + 3} where {right} is right"
    monkeypatch.setattr(torch, "arange", arange)
    monkeypatch.setattr(torch, "full", lambda *a, **k: full(*a, **k).index_fill_(0, torch.tensor([5, 9]), 0))
    assert probe() == f"2 of {gpu.PROBE_BYTES} bytes of GPU memory came back wrong"

    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    monkeypatch.setattr(torch, "full", broken)
    assert probe() == (
        "a simple computation on the GPU failed: CUDA error: an illegal memory access was encountered"
    )


@pytest.mark.dsl
def test_the_probe_of_a_machine_without_a_gpu_is_a_text():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        assert probe().startswith("a simple computation on the GPU failed: ")


def test_neither_torch_nor_nvml_is_imported_with_the_module(monkeypatch):
    imported = []
    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *a, **k: imported.append(name) or real(name, *a, **k))
    source = Path(gpu.__file__).read_text(encoding="utf-8")
    exec(compile(source, gpu.__file__, "exec"), {"__name__": "mkb_core.bench.gpu_again"})
    assert not {"torch", "pynvml"} & {name.split(".")[0] for name in imported}
