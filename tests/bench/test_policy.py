"""The untimed runs: an untrusted profile is read field by field, and spoiled or suppressed results must show."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from mkb_core.bench import wire
from mkb_core.bench.devicekernels import Profile
from mkb_core.bench.participant import Called, Rejected
from mkb_core.bench.policy import Again, Suppressed, pairs, read_profile, write_profile
from mkb_core.config import protocol


def report(launches=1, pointers=2, text=""):
    return wire.Report("tensor", (), launches, pointers, text)


class Part:
    """A runner that answers every call with the same report; what is in `outputs` follows the task."""

    part, number, outputs = "policy", 1, ()

    def __init__(self, answers, words=None):
        self.answers, self.words, self.tasks = answers, words or report(), []

    def call(self, draw, what, task=wire.CALL):
        self.tasks.append(task)
        return Called(1e-4, 2e-4, self.words, (self.answers(task),))

    def begin(self, draw, what):
        self.tasks.append(wire.CALL)

    def finish(self):
        return Called(1e-4, 2e-4, self.words, (self.answers(wire.CALL),))


class Judge(SimpleNamespace):
    """A checker to which an output is right where it says so."""

    def __init__(self, **more):
        super().__init__(rules=protocol().verdict, facts={}, timed=True, **more)

    def draw(self, what):
        return ()

    def specification(self, report, outputs, what):
        pass

    def check(self, part, draw, called, what, status):
        pass

    def fault(self, draw, outputs):
        return ("" if outputs == ("right",) else "wrong"), 0.0

    def rescaled(self, draw, outputs):
        return ("right",) if outputs == ("negated",) else None


def suppressed(answers, words=None):
    run = Suppressed(Judge(), Part(answers, words))
    run.begin()
    run.run()
    return run


def test_an_honest_kernel_leaves_nothing_valid():
    run = suppressed(lambda task: "wrong")
    assert run.checker.facts["launches"] == 1
    assert run.policy.tasks == [wire.CALL] * 2 + [wire.PAIR + 1, wire.PAIR + 16]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (lambda task: "right", "still valid with every launch of the DSL suppressed"),
        (lambda task: "right" if task == wire.PAIR + 16 else "wrong", "replaced by a copy"),
        (lambda task: "negated" if task == wire.PAIR + 1 else "wrong", "up to a scale and an offset"),
    ],
)
def test_valid_outputs_without_the_dsl_are_a_bypass(answers, says):
    with pytest.raises(Rejected, match=says) as caught:
        suppressed(answers)
    assert caught.value.status == "bypass"


def test_no_launch_at_all_is_a_bypass():
    with pytest.raises(Rejected, match="no kernel of the DSL was launched"):
        suppressed(lambda task: "wrong", report(launches=0))


def test_a_scale_and_an_offset_are_no_excuse_to_reject_a_suppressed_run():
    suppressed(lambda task: "negated" if task == wire.CALL else "wrong")  # zeros, say, where nothing was written


@pytest.mark.parametrize(("answers", "fine"), [(lambda t: "wrong", True), (lambda t: "right", False)])
def test_spoiled_results_must_show(answers, fine):
    again = Again(Judge(), Part(answers))
    if fine:
        again.perturb(2)
        return
    with pytest.raises(Rejected, match="nothing uses them"):
        again.perturb(2)
    assert again.again.tasks == [wire.PERTURB, wire.PERTURB + 1]


def test_a_fresh_process_must_be_about_as_fast():
    again = Again(Judge(), Part(lambda t: "right"))
    again.seconds = [1.2e-3, 1.0e-3, 1.1e-3]
    again.agrees(0.5e-3)
    with pytest.raises(
        Rejected, match=r"rule `phase`: a fresh process takes 1\.000 ms a call, the timed one 0\.100 ms"
    ):
        again.agrees(0.1e-3)


@pytest.fixture
def profiled(monkeypatch):
    """What the checker notes when a submission's call ran some kernels, and the reference others."""

    def look(ours, eager, names):
        monkeypatch.setattr("mkb_core.bench.devicekernels.profile", lambda call: Profile(eager))
        again = Again(Judge(), Part(lambda t: "right", report(text=write_profile(Profile(ours), names))))
        again.profile()
        return again.checker.facts

    return look


def test_the_share_of_the_dsl_and_the_names_of_the_others_are_noted(profiled):
    facts = profiled([("mine", 1, 75.0), ("gemm", 1, 25.0)], [("gemm", 1, 25.0), ("norm", 1, 9.0)], {"mine": 1})
    assert facts == {"dsl_share": 0.75, "other_kernels": ["gemm x1: 25.0%"]}


def test_eager_in_full_beside_a_kernel_is_a_bypass(profiled):
    with pytest.raises(Rejected, match=r"every kernel of the reference, and the DSL's take 10.0%"):
        profiled(
            [("mine", 1, 10.0), ("mul", 2, 60.0), ("sum", 1, 30.0)],
            [("mul", 2, 1.0), ("sum", 1, 1.0)],
            {"mine": 1},
        )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"kernels": 3, "names": {}}',
        '{"kernels": [[1]], "names": {}}',
        '{"kernels": [["a", 1e400, 1]], "names": {}}',
        '{"kernels": [["a", 1, "x"]], "names": {}}',
        '{"kernels": [], "names": {}}',
        '{"kernels": [["a", 0, 1]], "names": {}}',
        '{"kernels": [["a", 1, NaN]], "names": {}}',
        '{"kernels": [["a", 1, -1]], "names": {}}',
        '{"kernels": [["a", 1' + "0" * 400 + ', 1]], "names": {}}',
        '{"kernels": [["a", 1, 1]], "names": {"a": -5}}',
        '{"kernels": [["a", 1, 1]], "names": []}',
        "[" * 5000,
    ],
)
def test_words_that_are_no_profile_are_none(text):
    assert read_profile(text) is None


def test_a_profile_survives_the_page_however_long_its_names():
    profile = Profile([(f"k{i:02}" * 2000, 1, float(i)) for i in range(100)])
    text = write_profile(profile, {name: 1 for name, _, _ in profile.kernels})
    assert len(text) < wire.TEXT_BYTES
    found, names = read_profile(wire.unpack(wire.pack(report(text=text))).text)
    assert found.kernels[0] == ("k99" * 40, 1, 99.0)
    assert names["k00" * 40] == 1


def test_pairs_are_of_the_first_tensors():
    assert pairs(2) == [(0, 1), (1, 0)]
    assert len(pairs(50)) == 12
