"""Attempts from end to end: recording, LiteLLM, Terminus-2, sandbox, submissions, artifacts."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("harbor")

from mkb_core.bench.dsl import get_dsl
from mkb_core.bench.problems import get_problem
from mkb_core.bench.verdict import Verdict
from mkb_core.run import environments, task, trial
from mkb_core.run.demo import DemoServer
from mkb_core.run.feedback import feedback
from mkb_core.run.models import NotReady, get_model
from mkb_core.run.plan import Attempt
from mkb_core.run.trial import TrialBroken, run_trial

pytestmark = [
    # litellm defines such a type in a module that it imports at its first call
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    # Harbor calls what it deprecates itself
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
]
sandbox = [
    pytest.mark.sandbox,
    pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap: run `apt-get install bubblewrap tmux`"),
]
HAS_DSL = any(Path(p, "torch").is_dir() for p in sys.path)
SECRETS = {"OPENAI_API_KEY": "sk-host-openai-7f3a", "ZAI_API_KEY": "sk-host-zai-91bc"}
SKILL = "{finding} $x: rows fit\r\none warp   \n\nπ {{unknown}}\n"
SOLO = Attempt(model="demo", problem="p28", dsl="tirx", arm="solo")
SKILLED = SOLO.model_copy(update={"arm": "skill"})
SPIN = Attempt(model="demo", problem="p28", dsl="cutedsl", arm="solo")
MAILED = Attempt(model="demo", problem="p28", dsl="cutedsl", arm="skill")


def turn(*commands: tuple[str, float], complete: bool = False) -> dict:
    keys = [{"keystrokes": f"{text}\n", "duration": seconds} for text, seconds in commands]
    return {"analysis": "a", "plan": "p", "commands": keys, "task_complete": complete}


RECORDINGS = {
    SOLO: [
        turn(("env; cat /proc/self/environ; touch /submit/x", 0.2), ("bash /tests/submit.sh", 0.4)),
        turn(("echo wrong > /app/kernel.py; bash /tests/submit.sh", 0.6)),
        turn(("echo right > /app/kernel.py; bash /tests/submit.sh", 0.6)),
        turn(("for i in $(seq 9); do bash /tests/submit.sh; done 2>&1 | tail -n 5", 2.5)),
        turn(
            ("echo 'rows fit one warp' > /app/SKILL.md", 0.1),
            ("setsid bash -c 'while :; do echo late >> /app/SKILL.md; sleep 0.02; done' &", 0.1),
            complete=True,
        ),
    ],
    SKILLED: [turn(("printf ' \\n' > /app/SKILL.md", 0.1), complete=True)],
    SPIN: [turn(("echo half > /app/kernel.py; sleep 60", 30.0))],
    MAILED: [turn(("echo right > /app/kernel.py; bash /tests/submit.sh", 1.5), complete=True)],
}


async def evaluate(number: int, source: bytes) -> dict:
    """Right is right."""
    right = source == b"right\n"
    facts = {
        "problem": "p28",
        "dsl": "tirx",
        "device": "cuda",
        "workload": "full",
        "source_sha256": "0" * 64,
        "status": "passed" if right else "value",
        "message": "valid" if right else "output: error 3, allowed 1, in /srv/host/kernel.py",
        "speedup": 2.5 if right else None,
    }
    if right:
        facts |= {"kernel_ms": 1.0, "kernel_p10_ms": 1.0, "kernel_p90_ms": 1.0, "baseline_ms": 2.5}
    return feedback(Verdict.model_validate(facts), 0)


def place(root: Path, attempt: Attempt) -> Path:
    return root / f"{attempt.dsl}-{attempt.arm}"


def ledger(root: Path, attempt: Attempt) -> Path:
    return root / "ledgers" / f"{attempt.dsl}-{attempt.arm}"


async def one(root: Path, server: DemoServer, attempt: Attempt, environment: str = "bwrap", **options):
    return await run_trial(
        attempt,
        directory=place(root, attempt),
        ledger=ledger(root, attempt),
        model=get_model("demo"),
        evaluate=evaluate,
        api_base=server.url(attempt),
        environment=environment,
        environment_kwargs={"dsl": HAS_DSL},
        **options,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    recordings = tmp_path_factory.mktemp("recordings")
    for attempt, turns in RECORDINGS.items():
        name = f"{attempt.problem}-{attempt.dsl}-{attempt.arm}.yaml"
        (recordings / name).write_text(yaml.safe_dump(turns))
    with DemoServer(recordings) as server:
        yield server


class Run:
    """Three attempts, side by side as a pool would run them."""

    def __init__(self, root: Path, server: DemoServer) -> None:
        self.root = root
        # what a killed run left
        stale = place(root, SOLO) / trial.trial_name(SOLO, place(root, SOLO))
        (stale / "artifacts/app").mkdir(parents=True)
        (stale / "artifacts/app/stale.py").write_text("old")
        self.outcomes = asyncio.run(self.all(server))

    async def all(self, server: DemoServer):
        solo = one(self.root, server, SOLO)
        skilled = one(self.root, server, SKILLED, skill=SKILL)
        spin = one(self.root, server, SPIN, minutes=8 / 60)
        return dict(zip((SOLO, SKILLED, SPIN), await asyncio.gather(solo, skilled, spin), strict=True))

    def steps(self, attempt: Attempt) -> list[dict]:
        return json.loads(self.outcomes[attempt].trajectory.read_text())["steps"]

    def screen(self, attempt: Attempt) -> str:
        steps = self.steps(attempt)[1:]
        return "\n".join(result["content"] for s in steps for result in s["observation"]["results"])


@pytest.fixture(scope="module")
def run(tmp_path_factory, server):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        yield Run(tmp_path_factory.mktemp("trial"), server)


class TestRun:
    """What the recorded attempts left."""

    pytestmark = sandbox

    def test_artifacts_and_stop(self, run):
        outcome = run.outcomes[SOLO]
        assert outcome.stop == "completed"
        assert outcome.fair
        assert outcome.kernel == b"right\n"
        assert outcome.skill.startswith("rows fit one warp\n")
        assert outcome.turns == 6  # a task has to be called complete twice
        assert outcome.tokens_in > outcome.tokens_out > 0
        assert (outcome.tokens_cached, outcome.cost_usd) == (0, 0.0)
        assert 3 < outcome.seconds < 60

    def test_feedback_reaches_the_agent(self, run):
        screen = run.screen(SOLO)
        assert "not judged: /app/kernel.py does not exist" in screen
        assert "submission 1: value" in screen
        assert "output: error 3, allowed 1, in kernel.py" in screen
        assert "submission 2: valid" in screen
        assert "speedup 2.500" in screen

    def test_the_eleventh_submission_is_refused(self, run):
        assert "not judged: all 10 submissions are used\n" in run.screen(SOLO)
        kept = ledger(run.root, SOLO)
        assert len((kept / "ledger.jsonl").read_text().splitlines()) == 10
        assert (kept / "01.py").read_bytes() == b"wrong\n"
        assert json.loads((kept / "01.json").read_text())["status"] == "value"
        assert json.loads((kept / "02.json").read_text())["status"] == "passed"
        assert not (kept / "11.py").exists()

    def test_nothing_of_the_host_is_inside_or_in_the_files(self, run):
        screen = run.screen(SOLO)
        assert "PATH=" in screen
        assert "Read-only file system" in screen  # /submit
        for path in run.root.rglob("*"):
            if path.is_file():
                text = path.read_bytes().decode(errors="replace")
                assert not any(secret in text for secret in SECRETS.values()), path

    def test_sandbox_is_frozen_before_the_collection(self, run):
        folder = place(run.root, SOLO) / trial.trial_name(SOLO, place(run.root, SOLO))
        assert json.loads((folder / "result.json").read_text())["agent_result"]["metadata"]["frozen"]

    def test_what_a_killed_run_left_is_gone(self, run):
        assert not list(run.root.rglob("stale.py"))

    def test_each_trial_has_a_log_of_its_own(self, run):
        for attempt in run.outcomes:
            (log,) = place(run.root, attempt).glob("*/trial.log")
            others = [f"{place(run.root, other)}/" for other in run.outcomes if other != attempt]
            assert not any(other in log.read_text() for other in others)

    def test_prompts_of_the_arms_differ_by_the_skill_alone(self, run):
        solo, skilled = run.steps(SOLO)[0]["message"], run.steps(SKILLED)[0]["message"]
        attached = "\n\n" + task.skill_text(SKILL)
        assert skilled.count(attached) == 1  # to the byte, its CRLF and braces too
        assert skilled.replace(attached, "") == solo
        assert task.instruction(get_problem("p28"), get_dsl("tirx")) in solo

    def test_missing_and_empty_artifacts_are_none(self, run):
        outcome = run.outcomes[SKILLED]
        assert (outcome.kernel, outcome.skill, outcome.stop) == (None, None, "completed")

    def test_time_limit_keeps_what_is_there(self, run):
        outcome = run.outcomes[SPIN]
        assert (outcome.kernel, outcome.stop, outcome.fair) == (b"half\n", "timeout", True)
        assert 7.9 < outcome.seconds < 30
        assert outcome.tokens_in > 0


@pytest.mark.parametrize("attempt", [pytest.param(MAILED, marks=sandbox)])
def test_submissions_go_by_exec_where_there_is_no_mount(attempt, tmp_path, monkeypatch, server):
    path = environments.OURS["bwrap"]
    monkeypatch.setattr(environments, "OURS", {})  # as if the sandbox were somebody else's
    outcome = asyncio.run(one(tmp_path, server, attempt, environment=path, skill="x"))
    assert outcome.stop == "completed"
    assert json.loads((ledger(tmp_path, attempt) / "01.json").read_text())["status"] == "passed"
    assert "submission 1: valid" in outcome.trajectory.read_text()


@pytest.mark.parametrize("attempt", [pytest.param(SOLO, marks=sandbox)])
def test_sandbox_that_does_not_start_is_no_outcome(attempt, tmp_path, monkeypatch, server):
    async def refuse(self):
        raise RuntimeError("no namespaces here")

    monkeypatch.setattr("mkb_core.run.sandbox.BubblewrapEnvironment._start", refuse)
    with pytest.raises(TrialBroken, match="no namespaces here"):
        asyncio.run(one(tmp_path, server, attempt))


def test_model_without_a_key_does_not_start(tmp_path, monkeypatch):
    monkeypatch.delenv("ZAI_API_KEY", raising=False)
    model = get_model("glm-5.3")
    with pytest.raises(NotReady, match="ZAI_API_KEY"):
        asyncio.run(run_trial(SOLO, directory=tmp_path, ledger=tmp_path, model=model, evaluate=evaluate))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "skill"), [(None, None), (b"", None), (b" \r\n\t", None), (b"a\r\nb ", "a\r\nb "), (b"\xff", "�")]
)
def test_skill_without_a_word_is_none(data, skill):
    assert trial._skill(data) == skill
