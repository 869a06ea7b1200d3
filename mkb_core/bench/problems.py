"""The problem set: one self-contained folder a problem."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mkb_core.config import PROBLEMS, Record, load_yaml, unknown

FAMILIES = ("attention", "kv_cache", "mlp_norm", "moe", "quantization", "linear_attention")
Workload = Literal["full", "small"]


class Tensor(Record):
    """One input or output; shape entries are integers or names of workload constants."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


class Source(Record):
    """Where the subgraph comes from."""

    set: Literal["sol-execbench", "flashinfer", "vllm", "fla"]
    licence: str
    model: str
    record: str


class Cost(Record):
    """Floating-point operations, and the fewest bytes to move, of the full workload."""

    flops: int
    bytes: int


class Problem(Record):
    """problem.yaml of one folder, and the folder itself."""

    folder: Path
    id: str
    slug: str
    family: Literal["attention", "kv_cache", "mlp_norm", "moe", "quantization", "linear_attention"]
    source: Source
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    container: Literal["tensor", "tuple", "list"]
    mutates: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    constrained: tuple[str, ...] = ()  # inputs of which no single element may be changed freely
    cost: Cost
    departures: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()

    @property
    def reference_path(self) -> Path:
        """The file that an agent sees as /tests/task.py."""
        return self.folder / "reference.py"

    def solution_path(self, dsl: str) -> Path:
        """Our own valid kernel in this DSL; it may not exist."""
        return self.folder / "solutions" / f"{dsl}.py"

    def description(self) -> str:
        """The one-line task description: the docstring of reference.py."""
        first = self.reference_path.read_text(encoding="utf-8").split("\n", 1)[0]
        return first.strip('"')


@cache
def problems() -> dict[str, Problem]:
    """All problems by id, in order; raises pydantic.ValidationError naming the field that is off."""
    found = {}
    for path in sorted(PROBLEMS.glob("*/p[0-9][0-9]_*/problem.yaml"), key=lambda p: p.parent.name):
        problem = Problem.model_validate({"folder": path.parent, **load_yaml(path)})
        found[problem.id] = problem
    return found


def get_problem(problem_id: str) -> Problem:
    """The problem of this id; raises ValueError listing the ids that exist."""
    if problem_id not in problems():
        raise unknown("problem", problem_id, problems())
    return problems()[problem_id]


def load_module(path: Path, name: str) -> ModuleType:
    """Import a Python file from disk under a name of ours, past sys.path."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def load_reference(problem: Problem) -> ModuleType:
    """The problem's reference module; imports torch."""
    return load_module(problem.reference_path, f"mkb_reference_{problem.id}")


def constants(reference: ModuleType, workload: Workload) -> dict[str, Any]:
    """The constants of one workload, as the reference file states them."""
    return dict(reference.FULL if workload == "full" else reference.SMALL)


def edges(reference: ModuleType) -> tuple[str, ...]:
    """Names of the edge draws that a reference file declares in EDGES, in order; none where it has no EDGES.

    `reference.make_edge(name, constants, device)` gives the inputs of one, shapes and dtypes as in make_inputs.
    Raises ValueError where EDGES lacks a reason, or EDGES and make_edge are not both there.
    """
    declared = getattr(reference, "EDGES", {})
    where = f"{reference.__name__}: EDGES"
    if not isinstance(declared, dict):
        raise ValueError(f"{where} is a {type(declared).__name__}, expected a dict of names and reasons")
    for name, reason in declared.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"{where} has the name {name!r}, expected an identifier")
        if not (isinstance(reason, str) and reason.strip() and "\n" not in reason):
            raise ValueError(f"{where}[{name!r}] must say in one line why the draw is legal")
    if bool(declared) != callable(getattr(reference, "make_edge", None)):
        raise ValueError(f"{where} and make_edge(name, workload, device) must both be there, or neither")
    return tuple(declared)
