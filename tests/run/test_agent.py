"""Terminus-2 in our clothes, without a sandbox: how an attempt ends and what is kept of it."""

import asyncio
import logging
import os

import pytest

pytest.importorskip("harbor")

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.models.agent.context import AgentContext

from mkb_core.run.agent import BenchTerminus2
from mkb_core.run.feedback import Broker
from mkb_core.run.llm import MeteredLiteLLM, Stop


class Environment:
    """Notes what is done to it."""

    def __init__(self, left=0):
        self.left, self.kills = left, 0

    async def kill_all(self):
        self.kills += 1
        if isinstance(self.left, Exception):
            raise self.left
        return self.left


def make(tmp_path, seconds=5.0, **kwargs) -> BenchTerminus2:
    return BenchTerminus2(
        tmp_path / "trial" / "agent",
        "openai/test",
        seconds=seconds,
        price={"input": 1.0, "cached": 1.0, "output": 1.0},
        api_base="http://127.0.0.1:1/v1",
        logger=logging.getLogger("test"),
        **kwargs,
    )


def run(agent, body, monkeypatch, environment=None) -> AgentContext:
    """Context after `body(agent)` in place of Terminus-2's own loop."""

    async def instead(self, instruction, environment, context):
        context.metadata = {"n_episodes": 3}
        await body(self)

    monkeypatch.setattr(Terminus2, "run", instead)
    context = AgentContext()
    asyncio.run(agent.run("do it", environment or Environment(), context))
    return context


async def complete(agent):
    agent._pending_completion = True


async def leave(agent):
    pass


async def overrun(agent):
    await asyncio.sleep(60)


async def broke(agent):
    agent._llm.meter.cost_usd, agent._llm.meter.prompt = 2.5, 7
    raise Stop("budget", "spent it")


@pytest.mark.parametrize(
    ("body", "stop"),
    [(complete, "completed"), (leave, "shell-exit"), (overrun, "timeout"), (broke, "budget")],
)
def test_every_end_is_named_and_freezes_the_sandbox(tmp_path, monkeypatch, body, stop):
    environment = Environment()
    context = run(make(tmp_path, seconds=0.1), body, monkeypatch, environment)
    assert context.metadata["stop"] == stop
    assert context.metadata["frozen"] is True
    assert context.metadata["n_episodes"] == 3
    assert environment.kills == 1


def test_meter_goes_into_the_context(tmp_path, monkeypatch):
    context = run(make(tmp_path), broke, monkeypatch)
    assert (context.n_input_tokens, context.cost_usd) == (7, 2.5)
    assert context.metadata["meter"]["cost_usd"] == 2.5
    assert context.metadata["message"] == "spent it"


def test_errors_pass_but_the_sandbox_is_frozen_first(tmp_path, monkeypatch):
    async def fail(agent):
        raise ValueError("tmux broke")

    environment = Environment()
    with pytest.raises(ValueError, match="tmux broke"):
        run(make(tmp_path), fail, monkeypatch, environment)
    assert environment.kills == 1


def test_no_timeout_error_of_others_passes_for_the_deadline(tmp_path, monkeypatch):
    async def fail(agent):
        raise TimeoutError("of some library")

    with pytest.raises(RuntimeError, match="of some library"):
        run(make(tmp_path), fail, monkeypatch)


def test_dead_sandbox_hides_nothing(tmp_path, monkeypatch):
    context = run(make(tmp_path), complete, monkeypatch, Environment(left=RuntimeError("gone")))
    assert context.metadata["stop"] == "completed"
    assert context.metadata["frozen"] is False


def test_channel_is_closed_before_the_freeze(tmp_path, tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("s") / "s.sock"
    seen = []

    class Watching(Environment):
        async def kill_all(self):
            seen.append(path.exists())
            return 0

    async def evaluate(number, source):
        return {}

    async def look(*_):
        seen.append(path.exists())

    async def scenario():
        agent = make(tmp_path)
        agent.attach(Broker(tmp_path / "ledger", evaluate, 10), path.parent)
        await agent.run("do it", Watching(), AgentContext())

    monkeypatch.setattr(Terminus2, "run", look)
    asyncio.run(scenario())
    assert seen == [True, False]


def test_host_writes_its_trajectory_where_no_sandbox_is_mounted(tmp_path):
    agent = make(tmp_path)
    assert agent.logs_dir == tmp_path / "trial" / "trajectory"
    assert agent.logs_dir.is_dir()
    assert not agent._record_terminal_session


def test_model_is_the_metered_one_with_the_given_limits(tmp_path):
    agent = make(tmp_path, limits={"budget_usd": 0.5}, key_variable="ZAI_API_KEY")
    assert isinstance(agent._llm, MeteredLiteLLM)
    assert agent._llm._limits.budget_usd == 0.5
    with pytest.raises(TypeError):
        make(tmp_path, limits={"budget": 0.5})


def test_telemetry_and_price_downloads_are_off():
    assert os.environ["HARBOR_TELEMETRY"] == "0"
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
