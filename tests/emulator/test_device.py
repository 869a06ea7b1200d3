"""The solutions of two problems, and what the harness asks of the device; one process a DSL does it all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mkb_core import emulator
from mkb_core.emulator.device import Tensors

pytestmark = pytest.mark.dsl
HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["cutedsl", "tirx"])
def facts(request):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "kernels" / "drive.py"), request.param],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_solutions_are_right_and_quick(facts):
    assert [tuple(row[:3]) for row in facts["accuracy"]] == [
        ("p28", 29, 64),
        ("p28", 1, 64),
        ("p28", 3, 4096),
        ("p36", 96, 128),
        ("p36", 29, 128),
        ("p36", 1, 128),
    ]
    for _, _, _, error, seconds, launches in facts["accuracy"]:
        assert 1e-4 < error < 4e-3  # bf16 rounding alone gives more than the lower bound
        assert seconds < 1
        assert launches == 1
    assert facts["seeded"] < 4e-3
    assert facts["idle"] < 4e-3


def test_launch_is_described(facts):
    assert sorted(facts["pointers"]) == [0, 1, 2, 3]
    assert facts["launch"] == [[29, 1, 1], [32, 1, 1], False, True]


def test_suppressed_launch_does_nothing_or_copies(facts):
    assert facts["suppressed"] == [True, [[True, 0]]]
    assert facts["copied"] == [1]
    assert facts["same"] == facts["beyond"] == ["untouched"]
    assert facts["short"] == ["part"]
    assert facts["resumed"] is True


def test_kernels_of_one_name_stay_apart(facts):
    assert facts["same_name"] == [1.0, 3.0, 1.0, 3.0]
    assert facts["names"] == 1


def test_fork_after_install(facts):
    assert facts["fork"] == [0, 0]


def test_fault_is_kept_and_the_device_goes_on(facts):
    raised, kind, message, launches = facts["fault"]
    assert launches == 1
    if "direct" in facts:
        assert facts["direct"] is True
        assert raised.startswith("DSL")
        assert kind == "MemoryFault"
        assert "kernel kernel_cutlass_double_kernel" in message
        assert "block (0, 0, 0) thread (63, 0, 0)" in message
    else:
        assert kind == "UnsupportedInstruction"
        assert message == "needs a GPU: wgmma.fence.sync.aligned in kernel fenced_kernel"
    assert facts["after"] is True


def test_tirx_takes_every_form_of_call(facts):
    if facts["dsl"] == "cutedsl":
        return  # a compiled CuTe function is called in one form
    assert [facts[name] for name in ("call", "jit", "item")] == [True] * 3
    assert facts["shape"][1:] == ["NoneType", "None", 0]  # TVM's own check of shapes is still there


def test_torch_looks_like_cuda_and_works_as_before(facts):
    assert facts["devices"] == ["cuda:0"] * 3
    assert facts["context"] == "cuda:0"
    assert facts["cuda"] == [True, True, 1, [9, 0], 132, 0]
    assert facts["sparse"] in ("SystemError", "BufferError", "RuntimeError")  # refused, and nothing worse
    assert facts["trusted"] == [list(range(8)), "tensor([0, 1], dtype=torch.uint8)", [0.0] * 3]


def test_memory_lasts_as_long_as_a_tensor_uses_it():
    torch = pytest.importorskip("torch")
    tensors = Tensors()
    whole = torch.zeros(8)
    base = whole.data_ptr()
    tensors.add(whole)
    part = whole[2:]
    del whole
    tensors.drop_unused()
    assert tensors.memory.room(base) == 32
    del part
    tensors.drop_unused()
    assert tensors.memory.room(base) == 0


def test_install_refuses_what_it_can_not_do(monkeypatch):
    with pytest.raises(ValueError, match="unknown DSL 'triton': cutedsl or tirx"):
        emulator.install("triton")
    monkeypatch.setitem(sys.modules, "cutlass", sys)
    with pytest.raises(RuntimeError, match="cutlass was imported before the emulated device"):
        emulator.install("cutedsl")
