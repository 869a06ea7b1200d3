"""torch of an emulated process; one child process runs every check, as the patches hold for a whole process."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.dsl

CHILD = """
import json, sys
import torch
from mkb_core.emulator import torch_cuda
crossed = torch.frombuffer(bytearray(64), dtype=torch.float32)
torch_cuda.install()
ASK = "seen = x.device"
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

def fails(function, kind=Exception):
    try:
        function()
    except kind:
        return True
    return False

def check(text):
    space = {**globals(), "x": torch.ones(4, device="cuda"), "host": torch.ones(4, device="cpu")}
    space["table"] = torch.ones(4)
    *before, last = text.split("; ")
    try:
        exec("; ".join(before), space)
        return "" if eval(last, space) else "false"
    except BaseException as error:
        return repr(error)
    finally:
        torch.set_default_device(None)
        torch.cuda.set_stream(torch.cuda.default_stream())

json.dump([check(text) for text in json.load(sys.stdin)], sys.stdout)
"""

ARGUMENTS = [
    "torch.empty(3, device=0).device == CUDA",
    "torch.empty(3, device=torch.cuda.current_device()).device == CUDA",
    "torch.empty(3, device='cuda').device == torch.empty(3, device='cuda:0').device == CUDA",
    "x.to(0) is x",
    "x.to(device=0, dtype=torch.float64).device == CUDA",
    "x.to(0, torch.bfloat16).dtype == torch.bfloat16",
    "x.new_empty(2, device=0).device == CUDA",
    "x.cuda(0) is x",
    "torch.empty_like(x, device=x.device).device == CUDA",
    "torch.device(0) == torch.device('cuda', 0) == torch.device(type='cuda', index=0) == CUDA",
    "torch.device('cuda').index is None",
    "torch.nn.Linear(2, 2, device=0).weight.device == CUDA",
    "torch.nn.Linear(2, 2).to('cuda').weight.device == torch.nn.Linear(2, 2).to(0).bias.device == CUDA",
    # other integers are left alone
    "torch.full((2,), 0, device=0).tolist() == [0, 0]",
    "torch.arange(0, 3, device=0).tolist() == [0, 1, 2]",
    "x.sum(0).item() == 4 and x.sum(dim=0).item() == 4 and x.view(2, 2).transpose(0, 1).shape == (2, 2)",
    "x.to(torch.float64).dtype == torch.float64",
    # there is one device
    "fails(lambda: torch.empty(3, device=1), RuntimeError)",
    "fails(lambda: torch.empty(3, device='cuda:1'), RuntimeError)",
    "fails(lambda: torch.cuda.set_device(1), RuntimeError)",
]
PLACES = [
    "crossed.device == CUDA and crossed.detach().view(2, 8)[0].device == CUDA",
    "x.device.type == 'cuda' and x.device.index == 0 and x.get_device() == torch.get_device(x) == 0",
    "x.is_cuda and not x.is_cpu",
    "x.device == torch.device('cuda:0') and x.device != torch.device('cuda')",  # as on a GPU
    "torch.nn.Parameter(x).device == CUDA",
    "torch.empty(3, device='meta').device.type == 'meta'",
    "host.device == CPU and not host.is_cuda and host.get_device() == -1",
    "torch.empty(3, device='cpu').device == torch.zeros_like(x, device=CPU).device == CPU",
    "host[1:].view(3, 1).T.device == (host + host).device == host.double().sum().device == CPU",
    "all(part.device == CPU for part in host.tensor_split(2))",
    "torch.cat([host, host]).device == CPU and torch.cat([x, x]).device == CUDA",
    "(x + torch.tensor(2.0)).device == x.mul_(host[0]).device == CUDA",
    "(x + 1).device == x.sum().device == torch.rsqrt(x).device == torch.empty_like(x).device == CUDA",
    "host.copy_(x); host.device == CPU",
    "x.copy_(host); x.device == CUDA",
    # crossing over copies, as on a GPU
    "y = host.to(x.device); y.zero_(); y.device == CUDA and host.tolist() == [1] * 4",
    "y = host.cuda(); y.zero_(); y.device == CUDA and host.tolist() == [1] * 4",
    "y = x.cpu(); y.zero_(); y.device == CPU and x.tolist() == [1] * 4",
    "y = x.to('cpu'); y.zero_(); y.device == CPU and x.tolist() == [1] * 4",
    # without a device: says cuda:0, but moves as from the CPU
    "table.device == (table + table).device == CUDA and table.is_cuda",
    "y = table[:2].to('cuda').zero_(); y.device == CUDA and table.tolist() == [1] * 4",
    "y = table.view(2, 2).cuda().zero_(); y.device == CUDA and table.tolist() == [1] * 4",
    "(table + x).to('cuda').zero_().device == CUDA and (table + host).device == CPU",
    "y = table + x; y.cuda() is y",
    "host.to(x).device == CUDA and x.to(host).device == CPU and x.to(x) is x and host.cpu() is host",
    "torch.as_tensor([1.0], device=0).device == CUDA and torch.as_tensor(x).device == CUDA",
    "x.cpu().numpy().tolist() == [1] * 4",
    "repr(x).startswith('tensor')",
]
DEFAULTS = [
    "torch.set_default_device('cuda'); torch.empty(3).device == CUDA and torch.get_default_device() == CUDA",
    "torch.set_default_device(0); torch.zeros(3, dtype=torch.int32).device == CUDA",
    "torch.set_default_device('cuda'); torch.empty(3, device='cpu').device == CPU",
    "with torch.device('cuda'): made = torch.arange(3); made.device == CUDA and made.to(0) is made",
    "torch.randn(3, device='cuda', generator=torch.Generator(device='cuda').manual_seed(1)).device == CUDA",
    "with torch.device('cuda'): told = [y.device for y in (torch.empty(2), x, host)]; told == [CUDA, CUDA, CPU]",
    # the emulator sees what is there, whatever modes are entered
    "with torch.device('cuda'): seen = exec(ASK, (inside := {'__package__': 'mkb_core.emulator', 'x': x})); "
    "inside['seen'] == CPU and x.device == CUDA",
    "torch.Generator(x.device).device == CUDA and torch.Generator().device == CPU",
    "torch.cuda.manual_seed(1); a = torch.rand(2, device=0); torch.cuda.manual_seed_all(1); "
    "torch.equal(a, torch.rand(2, device=0))",
]
STREAMS = [
    "isinstance(torch.cuda.device, type) and torch.cuda.device(0).idx == torch.cuda.device(x.device).idx == 0",
    "torch.cuda.device('cuda').idx == 0 and fails(lambda: torch.cuda.device('cpu'), ValueError)",
    "torch.cuda.device(0).__enter__(); torch.cuda.device_of(x).__enter__(); torch.cuda.current_device() == 0",
    "torch.cuda.current_stream() == torch.cuda.default_stream() == torch.cuda.Stream(stream_id=0)",
    "hash(torch.cuda.current_stream()) == hash(torch.cuda.default_stream())",
    "s = torch.cuda.Stream(); s == s and s != torch.cuda.Stream() and s.cuda_stream == s.stream_id > 0",
    "torch.cuda.Stream(0, -1).priority == -1 and torch.cuda.Stream(priority=5).priority == 0",
    "torch.cuda.ExternalStream(4096, device=0).cuda_stream == 4096",
    "torch.cuda.ExternalStream(4096) == torch.cuda.get_stream_from_external(4096)",
    "s = torch.Stream(device='cuda'); (s.device, s.device_index, s.device_type) == (CUDA, 0, 1)",
    "isinstance(torch.cuda.Stream(), torch.Stream) and isinstance(torch.cuda.Event(), torch.Event)",
    "s = torch.cuda.Stream()\nwith torch.cuda.StreamContext(s): inside = torch.cuda.current_stream(); "
    "inside == s and torch.cuda.current_stream() == torch.cuda.default_stream()",
    "s = torch.Stream('cuda'); torch.cuda.stream(s).__enter__(); "
    "isinstance(torch.cuda.current_stream(), torch.cuda.Stream) and torch.accelerator.current_stream() == s",
    "s = torch.cuda.Stream()\nwith s: inside = torch.cuda.current_stream(); "
    "inside == s != torch.cuda.current_stream()",
    "torch.cuda.stream(None).__enter__(); torch.cuda.current_stream().cuda_stream == 0",
    "torch.cuda.Stream().__cuda_stream__()[0] == 0 and torch.cuda.Stream.priority_range()[0] == 0",
    "e = torch.cuda.Event(enable_timing=True); e.record(); torch.cuda.Stream().wait_event(e); "
    "e.query() and e.elapsed_time(torch.cuda.current_stream().record_event()) == 0",
    "torch.cuda.Stream().wait_stream(torch.cuda.current_stream()); torch.cuda.current_stream().query()",
    "x.record_stream(torch.cuda.current_stream()); not torch.cuda.is_current_stream_capturing()",
]
DEVICE = [
    "torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.device_count() == 1",
    "torch.cuda.init(); torch.cuda.synchronize(0); torch.cuda.synchronize(x.device) is None",
    "torch.cuda.set_device(x.device); torch.cuda.current_device() == 0",
    "torch.cuda.get_device_capability(0) == torch.cuda.get_device_capability() == (9, 0)",
    "torch.cuda.get_device_name('cuda') == torch.cuda.get_device_properties(0).name == 'NVIDIA H200'",
    "fails(lambda: torch.cuda.get_device_properties(1), AssertionError)",
    "p = torch.cuda.get_device_properties(); len(str(p.uuid)) == 36 and not p.is_integrated and p.gcnArchName",
    "p = torch.cuda.get_device_properties(); "
    "all(hasattr(p, name) for name in dir(torch._C._CudaDeviceProperties) if name[0] != '_')",
    "not torch.cuda.can_device_access_peer(0, 0) and torch.cuda.is_bf16_supported()",
    "fails(lambda: torch.cuda.can_device_access_peer(0, 1), AssertionError)",
    "torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats(); torch.cuda.max_memory_allocated() == 0",
    "torch.cuda.set_per_process_memory_fraction(0.5); torch.cuda.mem_get_info(0)[0] > 1 << 36",
    "torch.accelerator.is_available() and torch.accelerator.device_count() == 1",
    "torch.accelerator.synchronize(); torch.accelerator.synchronize(x.device) is None",
    "torch.accelerator.current_accelerator() == torch.device('cuda')",
    "torch.accelerator.set_device_index(0); torch.accelerator.current_device_index() == 0",
    "with torch.accelerator.device_index(0): s = torch.accelerator.current_stream(); s.cuda_stream == 0",
    "torch.accelerator.set_stream(torch.Stream()); torch.cuda.current_stream() != torch.cuda.default_stream()",
    "torch.accelerator.empty_cache(); torch.accelerator.memory_allocated() == 0",
]
CHECKS = [*ARGUMENTS, *PLACES, *DEFAULTS, *STREAMS, *DEVICE]


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        input=json.dumps(CHECKS),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CHECKS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("check", CHECKS)
def test_torch_answers_as_on_a_gpu(answers, check):
    assert answers[check] == ""
