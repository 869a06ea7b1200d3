"""What an agent is asked: the contract, its figures, and what the arms differ by."""

from pathlib import Path

import pytest

from mkb_core.bench.dsl import DSLS, get_dsl
from mkb_core.bench.problems import get_problem, problems
from mkb_core.config import protocol
from mkb_core.run import task

SNAPSHOT = Path(__file__).with_name("snapshots") / "p28-cutedsl.md"
SKILLS = [
    "plain",
    "",
    "{x} {{y}} $title ${cpus} %s \\n",
    "trailing spaces   \n\n\n",
    "win\r\nold mac\rend",
    "π ≤ 3·ε — 速い 🚀\n\ttab\x0bvt",
    "<!-- canary -->\n# canary\nfirst lines",
]


def ask(dsl: str) -> str:
    return task.instruction(get_problem("p28"), get_dsl(dsl))


def test_instruction_is_the_reviewed_one():
    # after a wanted change: print(ask("cutedsl")) into the snapshot, and read the difference
    assert ask("cutedsl") == SNAPSHOT.read_text(encoding="utf-8")


def test_variants_differ_by_the_dsls_fields_alone():
    texts = set()
    for key, dsl in DSLS.items():
        text = ask(key)
        for name, value in (
            ("documentation", "\n".join(f"- {place}" for place in dsl.documentation)),
            ("hint", dsl.compile_hint),
            ("modules", ", ".join(dsl.modules)),
            ("title", dsl.title),
        ):
            assert value in text
            text = text.replace(value, f"<{name}>")
        texts.add(text)
    assert len(texts) == 1


def test_other_dsl_is_not_mentioned():
    assert "TIRx" not in ask("cutedsl")
    assert "tvm" not in ask("cutedsl")
    assert "CuTe" not in ask("tirx")
    assert "cutlass" not in ask("tirx")


def test_every_problem_has_an_instruction():
    for problem in problems().values():
        assert problem.description() in task.instruction(problem, get_dsl("tirx"))


def test_figures_come_from_the_protocol(monkeypatch):
    given = protocol()
    other = given.model_copy(
        update={
            "sandbox": given.sandbox.model_copy(
                update={"cpus": 71, "memory_mb": 72 * 1024, "minutes": 73.5, "submissions": 74}
            ),
            "accuracy": given.accuracy.model_copy(update={"factor": 75.25}),
            "verdict": given.verdict.model_copy(
                update={"draws": 76, "warmup": 77, "timed": 78, "speedup_cap": 79.0, "call_seconds": 81.0}
            ),
        }
    )
    monkeypatch.setattr(task, "protocol", lambda: other)
    text = ask("tirx")
    for words in (
        "71 CPU cores, 72 GB",
        "73.5 minutes",
        "74 submissions",
        "75.25 times",
        "76 draws",
        "77 warm-up calls, then 78 timed",
        "up to 79.",
        "each later one 81,",
    ):
        assert words in text


@pytest.mark.parametrize("skill", SKILLS)
def test_skill_is_attached_verbatim(skill):
    text = task.skill_text(skill)
    assert text.endswith(skill)
    header = text.removesuffix(skill)
    assert header == task.skill_text("")
    assert header.endswith("\n\n")
    for word in ("pass", "fail", "valid", *(d.title for d in DSLS.values())):
        assert word not in header


@pytest.mark.parametrize("skill", SKILLS)
def test_arms_differ_by_the_attached_skill_alone(skill):
    problem, dsl = get_problem("p28"), get_dsl("tirx")
    solo, conditioned = task.prompt(problem, dsl, None), task.prompt(problem, dsl, skill)
    assert conditioned == solo + "\n\n" + task.skill_text(skill)


def test_task_folder_holds_the_reference_and_no_solution(tmp_path):
    problem = get_problem("p28")
    folder = task.write_task(problem, get_dsl("tirx"), tmp_path)
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert names == {
        "task.toml",
        "instruction.md",
        "environment/Dockerfile",
        "environment/requirements.txt",
        "tests/task.py",
        "tests/submit.sh",
        "tests/submit.py",
    }
    assert (folder / "tests/task.py").read_bytes() == problem.reference_path.read_bytes()
    assert (folder / "instruction.md").read_text() == ask("tirx")


def test_harbor_takes_the_folder(tmp_path):
    task_module = pytest.importorskip("harbor.models.task.task")
    folder = task.write_task(get_problem("p28"), get_dsl("tirx"), tmp_path)
    config = task_module.Task(folder, disable_verification=True).config
    assert config.schema_version == "1.3"
    assert config.environment.network_mode.value == "no-network"
    assert (config.environment.cpus, config.environment.memory_mb) == (2, 8192)
    assert config.environment.workdir == "/app"
    assert config.agent.timeout_sec == 40 * 60
    assert [a if isinstance(a, str) else a.source for a in config.artifacts] == [
        "/app/kernel.py",
        "/app/SKILL.md",
    ]


def test_container_installs_what_the_sandbox_binds(tmp_path):
    folder = task.write_task(get_problem("p28"), get_dsl("tirx"), tmp_path)
    required = (folder / "environment/requirements.txt").read_text()
    for dsl in DSLS.values():
        assert dsl.package in required
