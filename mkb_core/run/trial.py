"""One attempt through Harbor: task folder, sandbox, agent, feedback channel, and what is left of it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkb_core.bench.dsl import get_dsl
from mkb_core.bench.problems import get_problem
from mkb_core.config import protocol
from mkb_core.run import task
from mkb_core.run.feedback import Broker, Evaluate
from mkb_core.run.models import Model, require_ready
from mkb_core.run.plan import Attempt
from mkb_core.scratch import scratch

if TYPE_CHECKING:
    from harbor.models.trial.config import EnvironmentConfig, TrialConfig
    from harbor.models.trial.result import TrialResult

AGENT = "mkb_core.run.agent:BenchTerminus2"
BACKSTOP_SECONDS = 300.0  # the agent keeps its own deadline; Harbor's only catches what hangs after it
FAIR_STOPS = frozenset({"completed", "shell-exit", "timeout", "truncated", "context", "SandboxDied"})


class TrialBroken(RuntimeError):
    """The agent never got to work: nothing can be said about the attempt."""


@dataclass(frozen=True)
class TrialOutcome:
    """What an attempt left; a file that is not there, or a skill without a word, is None."""

    kernel: bytes | None
    skill: str | None
    stop: str  # completed, shell-exit, timeout, truncated, context, budget, auth, model, or an error's name
    message: str
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    cost_usd: float
    turns: int
    seconds: float
    trajectory: Path | None

    @property
    def fair(self) -> bool:
        """Whether the attempt ended by itself; otherwise it should be run again, not scored."""
        return self.stop in FAIR_STOPS


async def run_trial(
    attempt: Attempt,
    *,
    directory: Path,
    ledger: Path,
    model: Model,
    evaluate: Evaluate,
    skill: str | None = None,
    api_base: str | None = None,
    environment: str = "auto",
    environment_kwargs: dict[str, Any] | None = None,
    minutes: float | None = None,
    limits: dict[str, Any] | None = None,
) -> TrialOutcome:
    """Let the model try once.

    Raises NotReady for a model without key or price, TrialBroken where the sandbox or the agent did not
    start. `directory` is emptied of what a killed run left; `ledger` is kept and goes on counting.

    Args:
        attempt: What is tried; a skill is attached where `skill` is given.
        directory: The task folder and Harbor's trial folder go here.
        ledger: Submissions go here; neither Harbor nor the sandbox may see it.
        model: Who tries.
        evaluate: `evaluate(number, source)` returns `feedback` of the verdict.
        skill: Text of another attempt's SKILL.md.
        api_base: In place of the model's own.
        environment: `auto`, `bwrap`, `docker`, one of Harbor's types, or an import path.
        environment_kwargs: For its constructor.
        minutes: In place of the protocol's.
        limits: Fields of `mkb_core.run.llm.Limits`.
    """
    require_ready(model)
    await asyncio.to_thread(_import)
    for stale in (directory / trial_name(attempt, directory), directory / "task"):
        shutil.rmtree(stale, ignore_errors=True)
    seconds = 60 * (protocol().sandbox.minutes if minutes is None else minutes)
    broker = Broker(ledger, evaluate, protocol().sandbox.submissions)
    with scratch("submit") as submit:  # a socket's path has to be short
        place = _environment(environment, environment_kwargs or {}, Path(submit))
        config = _config(attempt, directory, skill, place)
        config.agent.model_name = model.litellm
        config.agent.override_timeout_sec = seconds + BACKSTOP_SECONDS
        config.agent.kwargs = _agent_kwargs(model, api_base, seconds, limits or {})
        result = await _run(attempt, config, skill, broker, Path(submit) if place.mounts else None)
        await broker.settle()  # not where the run is cancelled: a verdict may take a quarter of an hour
    return _outcome(result, directory / config.trial_name)


def trial_name(attempt: Attempt, directory: Path) -> str:
    """Harbor's folder below `directory`; Harbor names loggers and containers after it, so no two are equal."""
    place = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]
    return f"{attempt.id.replace('/', '-')}-{place}"


@cache
def _import() -> None:
    """Seconds of imports, which would stop every other attempt of the event loop; once a process."""
    importlib.import_module("mkb_core.run.agent")
    importlib.import_module("mkb_core.run.llm").warm_up()


def _environment(name: str, kwargs: dict[str, Any], submit: Path) -> EnvironmentConfig:
    """Our own environments take the socket's directory as a mount; for others there is exec."""
    from harbor.models.environment_type import EnvironmentType
    from harbor.models.trial.config import EnvironmentConfig

    from mkb_core.run.environments import OURS, choose

    chosen = choose(name)
    if ":" not in chosen:
        return EnvironmentConfig(type=EnvironmentType(chosen), kwargs=kwargs)
    if chosen not in OURS.values():
        return EnvironmentConfig(import_path=chosen, kwargs=kwargs)
    kwargs = {"pids": protocol().sandbox.processes, **kwargs}
    mount: Any = {"type": "bind", "source": str(submit.resolve()), "target": "/submit", "read_only": True}
    return EnvironmentConfig(import_path=chosen, kwargs=kwargs, mounts=[mount])


def _config(attempt: Attempt, directory: Path, skill: str | None, place: EnvironmentConfig) -> TrialConfig:
    from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig, VerifierConfig

    folder = task.write_task(get_problem(attempt.problem), get_dsl(attempt.dsl), directory / "task")
    attached = directory / "task" / "attached.md"
    if skill is not None:
        attached.write_bytes(task.skill_text(skill).encode())
    return TrialConfig(
        task=TaskConfig(path=folder),
        trial_name=trial_name(attempt, directory),
        trials_dir=directory,
        agent=AgentConfig(import_path=AGENT),
        environment=place,
        verifier=VerifierConfig(disable=True),
        extra_instruction_paths=[] if skill is None else [attached],
    )


def _agent_kwargs(model: Model, api_base: str | None, seconds: float, limits: dict[str, Any]) -> dict[str, Any]:
    """Harbor writes these to the trial's files: names of keys, never keys."""
    assert model.price is not None
    return {
        "seconds": seconds,
        "price": model.price.model_dump(),
        "key_variable": model.key_variable,
        "limits": limits,
        "model_info": model.info,
        "api_base": api_base or model.api_base,
    }


async def _run(
    attempt: Attempt, config: TrialConfig, skill: str | None, broker: Broker, socket_dir: Path | None
) -> TrialResult:
    from harbor.trial.trial import Trial

    trial = await Trial.create(config)
    # Harbor reads files with universal newlines; a skill is attached to the byte
    trial.task.instruction = task.prompt(get_problem(attempt.problem), get_dsl(attempt.dsl), skill)
    trial.agent.attach(broker, socket_dir)
    return await trial.run()


def _outcome(result: TrialResult, folder: Path) -> TrialOutcome:
    error, context = result.exception_info, result.agent_result
    if context is None or context.metadata is None or result.agent_execution is None:
        fault = f"{error.exception_type}: {error.exception_message}" if error else "the agent left no record"
        raise TrialBroken(f"{fault} (see {folder / 'trial.log'})")
    facts, phase = context.metadata, result.agent_execution
    assert phase.started_at is not None
    assert phase.finished_at is not None
    stop, message = facts["stop"], facts["message"]
    if error is not None:
        stop, message = error.exception_type, error.exception_message
    trajectory = folder / "trajectory" / "trajectory.json"
    return TrialOutcome(
        kernel=_artifact(folder, "kernel.py"),
        skill=_skill(_artifact(folder, "SKILL.md")),
        stop=stop,
        message=message,
        tokens_in=context.n_input_tokens or 0,
        tokens_cached=context.n_cache_tokens or 0,
        tokens_out=context.n_output_tokens or 0,
        cost_usd=context.cost_usd or 0.0,
        turns=facts.get("n_episodes", 0),
        seconds=(phase.finished_at - phase.started_at).total_seconds(),
        trajectory=trajectory if trajectory.exists() else None,
    )


def _artifact(folder: Path, name: str) -> bytes | None:
    path = folder / "artifacts" / "app" / name
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _skill(data: bytes | None) -> str | None:
    text = (data or b"").decode(errors="replace")
    return text if text.strip() else None
