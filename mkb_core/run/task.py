"""What an agent is asked: the instruction, the task folder for Harbor, the header above a skill."""

import tomllib
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from mkb_core.bench import rules
from mkb_core.bench.dsl import DSL
from mkb_core.bench.problems import Problem, Tensor
from mkb_core.config import ROOT, protocol

TEXT = Path(__file__).with_name("task_text")
CLIENT = Path(__file__).with_name("submit.py")


def template(name: str, **values: Any) -> str:
    """A file of task_text with its `$name` fields filled in; raises KeyError for one without a value."""
    return Template((TEXT / name).read_text(encoding="utf-8")).substitute(values)


def instruction(problem: Problem, dsl: DSL) -> str:
    """The whole contract of a variant; every figure in it comes from data/protocol.yaml."""
    return template("instruction.md", **_of_protocol(), **_of_problem(problem), **_of_dsl(dsl), **_of_rules())


def skill_text(skill: str) -> str:
    """A skill as it is attached: a neutral header, an empty line, then the skill unchanged."""
    return (TEXT / "skill_header.md").read_text(encoding="utf-8") + "\n" + skill


def prompt(problem: Problem, dsl: DSL, skill: str | None) -> str:
    """The task description of one attempt; the arms differ by the attached skill and nothing else."""
    text = instruction(problem, dsl)
    return text if skill is None else f"{text}\n\n{skill_text(skill)}"


def write_task(problem: Problem, dsl: DSL, directory: Path) -> Path:
    """Write a Harbor task folder below `directory` and return it; it holds no solution and no test.sh."""
    folder = directory / f"{problem.id}-{dsl.key}"
    sandbox = protocol().sandbox
    files = {
        "task.toml": template(
            "task.toml", seconds=sandbox.minutes * 60, cpus=sandbox.cpus, memory_mb=sandbox.memory_mb
        ),
        "instruction.md": instruction(problem, dsl),
        "environment/Dockerfile": template("Dockerfile", cpus=sandbox.cpus),
        "environment/requirements.txt": "".join(f"{line}\n" for line in requirements()),
        "tests/submit.sh": template("submit.sh"),
    }
    copies = {"tests/task.py": problem.reference_path, "tests/submit.py": CLIENT}
    contents = {name: text.encode() for name, text in files.items()}
    contents |= {name: path.read_bytes() for name, path in copies.items()}
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@cache
def requirements() -> tuple[str, ...]:
    """What a container has to install: the extra `dsl` of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return tuple(project["project"]["optional-dependencies"]["dsl"])


def _of_protocol() -> dict[str, str]:
    sandbox, verdict = protocol().sandbox, protocol().verdict
    numbers = {
        "cpus": sandbox.cpus,
        "memory_gb": sandbox.memory_mb / 1024,
        "minutes": sandbox.minutes,
        "submissions": sandbox.submissions,
        "factor": protocol().accuracy.factor,
        "draws": verdict.draws,
        "warmup": verdict.warmup,
        "timed": verdict.timed,
        "speedup_cap": verdict.speedup_cap,
        "first_call_seconds": verdict.first_call_seconds,
        "call_seconds": verdict.call_seconds,
        "verdict_seconds": verdict.verdict_seconds,
        "verdict_minutes": verdict.verdict_seconds / 60,
    }
    return {name: f"{number:g}" for name, number in numbers.items()}


def _of_problem(problem: Problem) -> dict[str, str]:
    rows = [("input", t) for t in problem.inputs] + [("output", t) for t in problem.outputs]
    container = "one tensor" if problem.container == "tensor" else f"a {problem.container} of tensors"
    return {
        "description": problem.description(),
        "tensors": "\n".join(_row(kind, tensor) for kind, tensor in rows),
        "container": f"`solve` returns {container}.",
        "mutates": f"Inputs that `solve` may change in place: {_names(problem.mutates)}.",
        "aliases": f"Inputs whose memory it may return: {_names(problem.aliases)}.",
    }


def _row(kind: str, tensor: Tensor) -> str:
    return f"| {kind} | `{tensor.name}` | {', '.join(map(str, tensor.shape)) or 'scalar'} | {tensor.dtype} |"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _of_dsl(dsl: DSL) -> dict[str, str]:
    return {
        "title": dsl.title,
        "modules": ", ".join(dsl.modules),
        "documentation": "\n".join(f"- {place}" for place in dsl.documentation),
        "compile_hint": dsl.compile_hint,
    }


SHARED = ("torch", "triton", "operator", "types")  # roots of the names that no DSL owns


def _of_rules() -> dict[str, str]:
    """The part of the static rules that every DSL shares; a DSL's own names would set the variants apart."""
    lines = []
    for rule, names in rules.FORBIDDEN_NAMES.items():
        shared = [f"`{name}`" for name in names.split() if name.startswith(SHARED)]
        lines.append(f"  - {rule}: {', '.join(shared)}")
    lines.append(f"  - built-in functions: {', '.join(f'`{n}`' for n in sorted(rules.FORBIDDEN_BUILTINS))}")
    modules = ", ".join(f"`{name}`" for name in sorted(rules.STANDARD_MODULES - {"__future__"}))
    return {
        "forbidden": "\n".join(lines),
        "standard_modules": modules,
        "max_literal": str(rules.MAX_LITERAL),
    }
