"""Unchanged GPU code of both DSLs on the emulated device, each in a process of its own."""

import pytest

pytestmark = pytest.mark.dsl

RMSNORM = """
import os, time
from mkb_core import emulator
device = emulator.install("{dsl}", seed={seed})
import torch
import {module} as kernel

def case(m, n, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(s, generator=g).bfloat16() for s in ((m, n), (n,)))
    y = x.double()
    return x, w, y * torch.rsqrt(y.pow(2).mean(1, keepdim=True) + 1e-6) * w.double()

def error(out, reference):
    return float((out.double() - reference).norm() / reference.norm())
"""
BOTH = [("cutedsl", "cute_rmsnorm"), ("tirx", "tirx_rmsnorm")]
RUN = """
for m, n in ((29, 64), (96, 128), (3, 1048)):
    x, w, reference = case(m, n)
    kernel.solve(x, w)
    start = time.perf_counter()
    out = kernel.solve(x, w)
    print(error(out, reference), time.perf_counter() - start)
print(len(device.launches), device.launches[-1].grid, device.launches[-1].block, device.error)
"""
SUPPRESS = """
x, w, reference = case(4, 64)
kernel.solve(x, w)
device.reset()
device.suppress = True
torch.empty_like = torch.empty = lambda *a, **k: torch.full((4, 64), 7.0, dtype=torch.bfloat16)
out = kernel.solve(x, w)
print(bool((out == 7).all()), [launch.skipped for launch in device.launches], device.launches[0].kernel)
"""
FORK = """
x, w, reference = case(5, 64)
child = os.fork()
if child == 0:
    out = kernel.solve(x, w)
    os._exit(0 if error(out, reference) < 4e-3 and len(device.launches) == 1 else 1)
first = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
out = kernel.solve(x, w)
print(first, error(out, reference) < 4e-3, len(device.launches))
"""


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(("dsl", "module"), BOTH)
def test_rmsnorm(fresh, dsl, module, seed):
    *cases, last = fresh(RMSNORM.format(dsl=dsl, module=module, seed=seed) + RUN)[:4]
    for line in cases:
        wrong, seconds = map(float, line.split())
        assert wrong < 4e-3
        assert seconds < 3
    assert last == "6 (3, 1, 1) (64, 1, 1) None"


@pytest.mark.parametrize(("dsl", "module"), BOTH)
def test_suppressed_launch_leaves_the_output(fresh, dsl, module):
    untouched, skipped, *kernel = fresh(RMSNORM.format(dsl=dsl, module=module, seed=None) + SUPPRESS)[0].split()
    assert (untouched, skipped) == ("True", "[True]")
    assert "rmsnorm_kernel" in kernel[0]


@pytest.mark.parametrize(("dsl", "module"), BOTH)
def test_fork_after_install(fresh, dsl, module):
    assert fresh(RMSNORM.format(dsl=dsl, module=module, seed=None) + FORK)[0] == "0 True 1"


def test_cute_direct_call_and_its_fault(fresh):
    script = """
from mkb_core import emulator
device = emulator.install("cutedsl")
import torch, cute_double
x = torch.arange(64, dtype=torch.float32, device="cuda:0")
print(bool((cute_double.solve(x) == 2 * x).all()))
try:
    cute_double.solve(x, 1)
except Exception as error:
    print(type(error).__name__)
print(type(device.error).__name__, device.error)
"""
    right, raised, kept = fresh(script)[:3]
    assert right == "True"
    assert raised.startswith("DSL")
    assert kept.startswith("MemoryFault kernel kernel_cutlass_double_kernel")
    assert "block (0, 0, 0) thread (63, 0, 0)" in kept


def test_tirx_every_form_of_call(fresh):
    script = (
        RMSNORM.format(dsl="tirx", module="tirx_rmsnorm", seed=None)
        + """
x, w, reference = case(4, 64)
exe = kernel.build(64)
for call in (exe, exe.jit()["main"], exe["main"]):
    out = torch.empty_like(x)
    call(x, w, out)
    print(error(out, reference) < 4e-3)
try:
    exe(x, w, torch.empty(4, 63, dtype=torch.bfloat16))
except Exception as failure:
    print(type(failure).__name__, device.error)
"""
    )
    lines = fresh(script)
    assert lines[:3] == ["True"] * 3
    assert lines[3].endswith("None")  # TVM's own check of shapes is still there


def test_tirx_kernel_that_needs_a_gpu(fresh):
    script = """
from mkb_core import emulator
device = emulator.install("tirx")
import torch, tirx_wgmma
try:
    tirx_wgmma.solve(torch.zeros(128))
except RuntimeError as error:
    print(str(error).splitlines()[0])
print(type(device.error).__name__, device.error)
"""
    raised, kept = fresh(script)[:2]
    assert "needs a GPU: wgmma.fence.sync.aligned in kernel fenced_kernel" in raised
    assert kept == "UnsupportedInstruction needs a GPU: wgmma.fence.sync.aligned in kernel fenced_kernel"


def test_torch_looks_like_cuda(fresh):
    script = """
from mkb_core import emulator
emulator.install("cutedsl")
import torch
x = torch.zeros(3, device=torch.device("cuda"))
print(x.device, x.is_cuda, x.cuda().to("cuda:0").device, x.new_empty(2, device="cuda").device)
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_capability())
print(torch.cuda.get_device_properties(0).multi_processor_count, torch.cuda.current_stream().cuda_stream)
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.synchronize()
a, b = (torch.randn(2, generator=torch.Generator().manual_seed(1)) for _ in range(2))
print(torch.equal(a, b))
"""
    assert fresh(script)[:4] == ["cpu True cpu cpu", "True 1 (9, 0)", "132 0", "True"]


def test_install_refuses_what_it_can_not_do(fresh):
    script = """
from mkb_core import emulator
try:
    emulator.install("triton")
except ValueError as error:
    print(error)
import cutlass
try:
    emulator.install("cutedsl")
except RuntimeError as error:
    print(error)
"""
    assert fresh(script)[:2] == [
        "unknown DSL 'triton': cutedsl or tirx",
        "cutlass was imported before the emulated device was installed",
    ]
