"""The pool with stand-ins for trial and verifier: resume, skipped treatments, and attempts that fail alone."""

import asyncio
import contextlib

import pytest

from mkb_core import records
from mkb_core.bench.verdict import Verdict
from mkb_core.config import DATA
from mkb_core.run import pool, session, task
from mkb_core.run.feedback import NotJudged
from mkb_core.run.plan import Attempt, grid, select
from mkb_core.run.trial import TrialOutcome
from mkb_core.study import compare


class FakeVerifier:
    device = "emulated"

    def __init__(self, _device):
        self.calls = 0

    def close(self):
        pass

    def verify(self, problem, dsl, source):
        status = "passed" if b"right" in source else "value"
        return Verdict(
            problem=problem, dsl=dsl, device="emulated", workload="small", status=status, message="m",
            source_sha256="0" * 64, seconds=0.1, seed=1,
        )  # fmt: skip


class Trials:
    """Stands for run_trial: each attempt hands in once and leaves what `left` says."""

    def __init__(self):
        self.ran, self.given = [], {}
        self.left = {}
        self.broken = set()
        self.stop = {}

    async def __call__(self, attempt, *, directory, ledger, evaluate, skill, **_options):
        self.ran.append(attempt.id)
        self.given[attempt.id] = skill
        if attempt.id in self.broken:
            raise OSError(28, "No space left on device")
        kernel, skill_left = self.left.get(attempt.id, (b"right", "notes"))
        ledger.mkdir(parents=True)
        (ledger / "01.py").write_bytes(b"wrong")
        with contextlib.suppress(NotJudged):  # as the broker does
            await evaluate(1, b"wrong")
        return TrialOutcome(
            kernel=kernel, skill=skill_left, stop=self.stop.get(attempt.id, "completed"), message="why",
            tokens_in=10, tokens_cached=0, tokens_out=5, cost_usd=0.0, turns=3, seconds=1.0, trajectory=None,
        )  # fmt: skip


@pytest.fixture
def trials(monkeypatch):
    fake = Trials()
    monkeypatch.setattr(pool, "run_trial", fake)
    monkeypatch.setattr(pool, "Verifier", FakeVerifier)
    return fake


def run(tmp_path, arm="solo", lines=None, **options):
    attempts = list(grid("demo", ["p28", "p36"], arm=arm))
    worker = pool.Pool(runs=tmp_path, progress=(lines if lines is not None else []).append, **options)
    asyncio.run(worker.run(attempts))
    return attempts


def test_all_attempts_run_once_and_the_same_line_again_redoes_nothing(tmp_path, trials):
    lines = []
    attempts = run(tmp_path, lines=lines)
    assert sorted(trials.ran) == sorted(a.id for a in attempts)
    assert len(lines) == 4
    assert lines[0].startswith("[1/4] demo/p28/")
    again = []
    run(tmp_path, lines=again)
    assert (len(trials.ran), again) == (4, [])
    table = records.load("attempts", tmp_path)
    assert (len(table), table.passed.all(), set(table.submissions)) == (4, True, {1})
    assert set(records.load("submissions", tmp_path).number) == {0, 1}
    assert len(records.load("verdicts", tmp_path)) == 8
    assert set(records.load("skills", tmp_path).words) == {1}


def test_the_skill_crosses_verbatim_from_the_other_dsl_and_nothing_else_does(tmp_path, trials):
    text = "ünïcode {braces} trailing  \r\n\n"
    trials.left["demo/p28/cutedsl/solo/r1"] = (b"right", text)
    run(tmp_path)
    run(tmp_path, "skill")
    assert trials.given["demo/p28/tirx/skill/r1"] == text
    assert trials.given["demo/p28/cutedsl/skill/r1"] == "notes"
    assert all(trials.given[a.id] is None for a in grid("demo", ["p28", "p36"]))
    row = records.load("attempts", tmp_path).set_index("attempt").loc["demo/p28/tirx/skill/r1"]
    assert row.given_skill_sha256 == session.digest(text)


def test_a_source_without_skill_leaves_a_skipped_treatment_with_the_baselines_outcome(tmp_path, trials):
    trials.left["demo/p36/tirx/solo/r1"] = (b"wrong", None)
    lines = []
    run(tmp_path)
    run(tmp_path, "skill", lines)
    assert "demo/p36/cutedsl/skill/r1" not in trials.ran
    assert any("skipped: its source wrote no skill" in line for line in lines)
    table = records.load("attempts", tmp_path)
    row = table.set_index("attempt").loc["demo/p36/cutedsl/skill/r1"]
    assert (row.status, row.passed, row.demo) == ("skipped", True, True)
    rows = compare.comparisons(table).set_index("treatment")
    assert rows.loc["demo/p36/cutedsl/skill/r1"].case == "skipped"
    assert len(rows) == 4


def test_each_attempt_fails_alone_and_only_what_failed_is_run_again(tmp_path, trials):
    bad = "demo/p28/tirx/solo/r1"
    trials.broken.add(bad)
    with pytest.raises(RuntimeError, match=f"(?s)same line again retries.*{bad}.*No space left"):
        run(tmp_path)
    assert len(records.load("attempts", tmp_path)) == 3
    trials.broken.clear()
    trials.ran.clear()
    run(tmp_path)
    assert trials.ran == [bad]


def test_a_stop_that_is_not_the_models_doing_is_not_scored(tmp_path, trials):
    trials.stop["demo/p28/tirx/solo/r1"] = "auth"
    with pytest.raises(RuntimeError, match="auth: why"):
        run(tmp_path)
    assert len(records.load("attempts", tmp_path)) == 3


def test_what_an_interrupted_try_left_is_set_aside_not_counted(tmp_path, trials):
    attempt = Attempt(model="demo", problem="p28", dsl="tirx", arm="solo")
    ledger = attempt.folder(tmp_path) / "ledger"
    ledger.mkdir(parents=True)
    (ledger / "ledger.jsonl").write_text("{}\n")
    run(tmp_path)
    aside = attempt.folder(tmp_path) / "interrupted" / "1" / "ledger" / "ledger.jsonl"
    assert aside.read_text() == "{}\n"
    assert records.finished(attempt.folder(tmp_path))["attempts"][0]["submissions"] == 1


def test_no_kernel_is_a_failed_attempt(tmp_path, trials):
    trials.left["demo/p28/tirx/solo/r1"] = (None, None)
    run(tmp_path)
    row = records.load("attempts", tmp_path).set_index("attempt").loc["demo/p28/tirx/solo/r1"]
    assert not row.passed
    assert records.finished(Attempt(model="demo", problem="p28", dsl="tirx", arm="solo").folder(tmp_path))


def test_a_skill_attempt_before_its_source_says_what_to_run(tmp_path, trials):
    with pytest.raises(pool.NoSource, match="run 01_solo first"):
        run(tmp_path, "skill")
    assert trials.ran == []


def test_a_changed_task_makes_a_finished_attempt_stale(tmp_path, trials, monkeypatch):
    attempts = run(tmp_path)
    assert {pool.status(a, "emulated", tmp_path) for a in attempts} == {"done"}
    assert {pool.status(a, "cuda", tmp_path) for a in attempts} == {"stale"}
    monkeypatch.setattr(task, "instruction", lambda *_: "another text")
    assert {pool.status(a, "emulated", tmp_path) for a in attempts} == {"stale"}
    trials.ran.clear()
    lines = []
    run(tmp_path, lines=lines)
    assert trials.ran == []
    assert lines[0].startswith("4 finished attempts are stale")
    run(tmp_path, rerun_stale=True)
    assert len(trials.ran) == 4
    assert {pool.status(a, "emulated", tmp_path) for a in attempts} == {"done"}


def test_a_missing_key_or_price_stops_the_run_before_it_starts(tmp_path, trials, monkeypatch):
    monkeypatch.delenv("ZAI_API_KEY", raising=False)
    worker = pool.Pool(runs=tmp_path)
    with pytest.raises(Exception, match=r"ZAI_API_KEY.*data/models.yaml"):
        asyncio.run(worker.run(grid("glm-5.3", ["p28"])))
    assert trials.ran == []


def test_a_fault_of_the_verifier_is_never_scored_and_costs_no_submission(tmp_path, trials, monkeypatch):
    def broken(self, problem, dsl, source):
        return FakeVerifier.judge(self, problem, dsl, source).model_copy(update={"status": "infra"})

    monkeypatch.setattr(FakeVerifier, "judge", FakeVerifier.verify, raising=False)
    monkeypatch.setattr(FakeVerifier, "verify", broken)
    with pytest.raises(RuntimeError, match="the same line again retries"):
        run(tmp_path)
    assert len(records.load("attempts", tmp_path)) == 0
    monkeypatch.setattr(FakeVerifier, "verify", FakeVerifier.judge)
    run(tmp_path)
    assert set(records.load("attempts", tmp_path).submissions) == {1}


def test_two_runs_never_work_on_one_folder(tmp_path, trials):
    with pool.alone(tmp_path), pytest.raises(RuntimeError, match="another run is at work"):
        run(tmp_path)
    assert trials.ran == []
    run(tmp_path)
    assert len(trials.ran) == 4


def test_cuda_without_a_gpu_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("mkb_core.bench.verify.has_gpu", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device here"):
        pool.Pool(runs=tmp_path, device="cuda")


def test_selection_by_id_family_glob_and_all():
    from mkb_core.bench.problems import problems

    available = list(problems().values())
    assert select("all", available) == [p.id for p in available]
    assert select("p36", available) == ["p36"]
    assert select("p36, p28", available) == ["p28", "p36"]
    assert "p28" in select("mlp_norm", available)
    assert select("*rmsnorm_h128", available) == ["p36"]
    with pytest.raises(ValueError, match=r"unknown problem, family or pattern 'p99'; there are: all, p27"):
        select("p99", available)


def test_recordings_are_complete():
    from mkb_core.run.demo import recorded

    assert recorded(DATA / "demo") == ["p28", "p36"]
