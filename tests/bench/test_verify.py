"""Verdicts on this machine's device: our solutions pass, every fault has its own clear status, none spreads."""

import re

import pytest

pytest.importorskip("torch")

from mkb_core.bench.gpu import default_device
from mkb_core.bench.policy import ONE_SHOT_CALLS
from mkb_core.bench.problems import edges, get_problem, load_reference, problems
from mkb_core.bench.verify import Verifier, main
from mkb_core.config import protocol

pytestmark = pytest.mark.dsl
DEVICE = default_device()
SOLUTIONS = [(p.id, d) for p in problems().values() for d in ("cutedsl", "tirx") if p.solution_path(d).exists()]
QUICK = protocol().verdict.model_copy(update={"first_call_seconds": 6, "call_seconds": 3})

# eager and right, so that what follows it is what a case is about
EAGER = """
import torch

def eager(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)

"""


@pytest.fixture(scope="module")
def verifier():
    with Verifier(DEVICE) as warm:
        yield warm


@pytest.fixture(scope="module")
def quick():
    with Verifier(DEVICE, QUICK) as warm:
        yield warm


def judge(verifier, body):
    """Facts of a verdict past the static rules: what only the processes can find."""
    return verifier.facts_without_rules("p36", "cutedsl", (EAGER + body).encode())


@pytest.mark.parametrize(("problem_id", "dsl"), SOLUTIONS)
def test_our_solutions_pass_and_emulation_claims_no_speed(verifier, problem_id, dsl):
    verdict = verifier.verify(problem_id, dsl, get_problem(problem_id).solution_path(dsl).read_bytes())
    assert verdict.status == "passed", verdict.message
    rules, timed = protocol().verdict, DEVICE == "cuda"
    assert (verdict.device, verdict.workload) == (DEVICE, "full" if timed else "small")
    problem = get_problem(problem_id)
    changed = 1 + sum(t.dtype.startswith(("float", "bfloat")) for t in problem.inputs)
    untimed = rules.draws + len(edges(load_reference(problem))) + changed + 1 + timed * ONE_SHOT_CALLS
    if timed:  # every call of the timed part is compared, those that settle a block too
        assert verdict.draws >= untimed + rules.warmup + rules.timed
        assert verdict.timed >= rules.timed
        assert verdict.dsl_share > 0.9
    else:
        assert verdict.draws == untimed
    assert verdict.unenforced == []
    assert 0 < verdict.error_ratio <= 1
    assert verdict.launches == 1
    if timed:
        assert 1 < verdict.speedup == pytest.approx(verdict.baseline_ms / verdict.kernel_ms)
    else:
        assert verdict.kernel_ms is verdict.baseline_ms is verdict.speedup is None


@pytest.mark.parametrize(("problem_id", "dsl"), SOLUTIONS)
def test_a_solution_with_its_launch_deleted_is_a_bypass(verifier, problem_id, dsl):
    source = get_problem(problem_id).solution_path(dsl).read_text()
    deleted = re.sub(r"\n    compiled\(.*\n", "\n", source)
    assert deleted != source
    verdict = verifier.verify(problem_id, dsl, deleted)
    assert verdict.status == "bypass"
    assert "no kernel of the DSL was launched" in verdict.message


FAULTS = [
    ("raise at import", "raise ValueError('boom')\ndef solve(x, w): pass", "build", "ValueError: boom"),
    ("exit at import", "import sys; sys.exit(0)\ndef solve(x, w): pass", "build", "SystemExit: 0"),
    ("raise in a call", "def solve(x, w):\n    raise KeyError('k')", "runtime", "draw 1 of 5: "),
    ("exit in a call", "def solve(x, w):\n    import os; os._exit(0)", "runtime", "process ended (exit code 0)"),
    ("segfault", "def solve(x, w):\n    import ctypes; ctypes.string_at(0)", "runtime", "(signal 11)"),
    ("stdout", "def solve(x, w):\n    while True: print('x' * 10**6)", "runtime", "wrote more than 16 MiB"),
    ("none", "CALL return None", "spec", "solve returned NoneType"),
    ("tuple", "CALL return (eager(x, w),)", "spec", "a tuple, expected a tensor"),
    (
        "dtype",
        "CALL return eager(x, w).float()",
        "spec",
        "output is float32 (96, 128), expected bfloat16 (96, 128)",
    ),
    (
        "shape",
        "CALL return eager(x, w)[:1]",
        "spec",
        "output is bfloat16 (1, 128), expected bfloat16 (96, 128)",
    ),
    (
        "mutation",
        "CALL y = eager(x, w); x.zero_(); return y",
        "spec",
        "changed its input hidden_states",
    ),
    ("subclass", "CALL return eager(x, w).as_subclass(type('T', (torch.Tensor,), {}))", "spec", "T"),
    ("sparse", "CALL return eager(x, w).to_sparse()", "spec", "a value that cannot be copied"),
    (
        "no storage",
        "CALL y = eager(x, w); y.untyped_storage().resize_(0); return y",
        "spec",
        "output is not a dense tensor",
    ),
    (
        "mode left entered",
        "CALL y = eager(x, w); torch.device('cuda').__enter__(); return y",
        "runtime",
        "left a torch function or dispatch mode entered",
    ),
    ("zeros", "CALL return torch.zeros_like(x)", "value", "max error"),
    (
        "nan",
        "CALL y = eager(x, w); y[0, 0] = float('nan'); return y",
        "value",
        "1 NaN where the reference has none",
    ),
    (
        "stale",
        "CALL KEPT.append(eager(x, w)); return KEPT[0]",
        "value",
        "draw 2 of 5",
    ),
    (
        "keyed by pointer",
        "CALL return TABLE.setdefault(x.data_ptr(), eager(x, w))",
        "value",
        "of 5: output",
    ),
]  # fmt: skip
# a launch of the DSL beside the point, so that the check that a case is about is reached
LAUNCH = """
import cutlass, cutlass.cute as cute

@cute.kernel
def nothing_kernel(g: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    g[t] = g[t]

@cute.jit
def nothing(g: cute.Tensor, stream):
    nothing_kernel(g).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

scratch = torch.zeros(32, device="cuda")
f = cute.compile(nothing, cute.runtime.make_fake_compact_tensor(cutlass.Float32, (32,)),
                 cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True), options="--enable-tvm-ffi")

KEPT, TABLE = [], {}

def solve(x, w):
    f(scratch)
    """


@pytest.mark.parametrize(("body", "status", "text"), [c[1:] for c in FAULTS], ids=[c[0] for c in FAULTS])
def test_each_fault_has_its_status_and_says_what_was_wrong(verifier, body, status, text):
    facts = judge(verifier, body.replace("CALL ", LAUNCH))
    assert (facts["status"], text in facts["message"]) == (status, True), facts


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("while True: pass\ndef solve(x, w): pass", "import took longer than 6 s; killed"),
        ("def solve(x, w):\n    while True: pass", "draw 1 of 5 took longer than 6 s; killed"),
        (
            "import os, signal\ndef solve(x, w):\n    os.kill(os.getpid(), signal.SIGSTOP)",
            "draw 1 of 5 took longer than 6 s; killed",
        ),
    ],
    ids=["import", "call", "stopped"],
)
def test_a_hang_is_killed_at_its_deadline(quick, body, text):
    facts = judge(quick, body)
    assert (facts["status"], facts["message"]) == ("timeout", text)


def test_shared_memory_cannot_be_opened_again_through_a_descriptor(verifier):
    body = """
import os
def solve(x, w):
    here = "/proc/self/fd/"
    found = [os.readlink(here + n) for n in os.listdir(here) if os.path.lexists(here + n)]
    shared = [name for name in found if "memfd" in name]
    raise RuntimeError(f"shared: {shared}")
"""
    assert "shared: []" in judge(verifier, body)["message"]


def test_the_verdict_after_a_fault_is_unaffected(verifier):
    source = get_problem("p36").solution_path("cutedsl").read_bytes()
    for body in ("def solve(x, w):\n    import ctypes; ctypes.string_at(0)", "raise SystemError"):
        assert judge(verifier, body)["status"] != "passed"
        assert verifier.verify("p36", "cutedsl", source).passed


def test_a_seed_repeats_a_verdict_and_another_draws_afresh(verifier):
    source = get_problem("p36").solution_path("tirx").read_bytes()
    first, again, other = (
        verifier.verify("p36", "tirx", source, seed=s, workload="small").error_ratio for s in (7, 7, 8)
    )
    assert first == again
    assert first != other


def test_what_a_submission_prints_is_shown_cut_and_changes_nothing(verifier):
    source = get_problem("p36").solution_path("cutedsl").read_text()
    verdict = verifier.verify(
        "p36", "cutedsl", source.replace("    output =", "    print('PASS ' * 100)\n    output =")
    )
    assert verdict.passed
    assert verdict.output.startswith("PASS PASS")
    assert len(verdict.output) <= 4096


def test_unknown_names_list_what_exists(verifier):
    with pytest.raises(ValueError, match="unknown problem 'p99'; there are: p27, p28"):
        verifier.verify("p99", "tirx", "")
    with pytest.raises(ValueError, match="unknown DSL 'triton'; there are: cutedsl, tirx"):
        verifier.verify("p28", "triton", "")


def test_command_line(tmp_path, capsys):
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def solve(x")
    assert main(["p28", "tirx", str(kernel), "--device", DEVICE]) == 1
    assert f"p28 tirx on {DEVICE} (" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["p28", "tirx", str(tmp_path / "missing.py")])
    assert caught.value.code == 2
    assert "missing.py" in capsys.readouterr().err
