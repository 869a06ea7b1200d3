"""Terminus-2 as the benchmark runs it; Harbor loads it as `mkb_core.run.agent:BenchTerminus2`."""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, override

from mkb_core.run.llm import Limits, MeteredLiteLLM, Stop  # isort: skip  # sets what harbor reads at import
from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment
from harbor.llms.litellm_config import configure_litellm_debug
from harbor.models.agent.context import AgentContext

from mkb_core.run.feedback import Broker, ExecTransport, UnixSocketTransport
from mkb_core.run.models import Price


class BenchTerminus2(Terminus2):  # type: ignore[misc]
    """One attempt: limited time and spending, a feedback channel, and a sandbox that is still at the end.

    `context.metadata` gets `stop` (completed, shell-exit, timeout, or why the model could not go on),
    `message`, `meter` and `frozen`.
    """

    def __init__(
        self,
        logs_dir: Path,
        *args: Any,
        seconds: float,
        price: dict[str, float],
        key_variable: str | None = None,
        limits: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """See `Terminus2` for the rest; arguments are plain data, since Harbor writes them to its records."""
        self._seconds = seconds
        self._price, self._key_variable, self._limits = Price(**price), key_variable, Limits(**(limits or {}))
        self._broker: Broker | None = None
        self._socket_dir: Path | None = None
        # an environment may mount trial_dir/agent, and the host would follow links that the agent makes there
        host_only = Path(logs_dir).parent / "trajectory"
        host_only.mkdir(parents=True, exist_ok=True)
        kwargs["record_terminal_session"] = False  # a recording would need asciinema inside
        super().__init__(host_only, *args, **kwargs)

    def attach(self, broker: Broker, socket_dir: Path | None) -> None:
        """Who takes submissions, over a socket in a directory that is mounted as /submit, or by exec."""
        self._broker, self._socket_dir = broker, socket_dir

    @override
    def _init_llm(
        self,
        llm_backend: Any,
        model_name: str,
        temperature: float | None,
        collect_rollout_details: bool,
        llm_kwargs: dict[str, Any] | None,
        *args: Any,
        **kwargs: Any,
    ) -> MeteredLiteLLM:
        configure_litellm_debug(debug=False)  # litellm prints advice on model names that it does not know
        return MeteredLiteLLM(
            model_name=model_name,
            temperature=temperature,
            collect_rollout_details=collect_rollout_details,
            price=self._price,
            key_variable=self._key_variable,
            limits=self._limits,
            **(llm_kwargs or {}),
            **kwargs,
        )

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Bring the task's files to /tests, then start the terminal."""
        await environment.upload_dir(environment.environment_dir.parent / "tests", "/tests")
        await super().setup(environment)

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Work until the agent, the clock or the model ends it, and leave the sandbox without processes."""
        stop, message = "error", ""
        deadline = asyncio.timeout(self._seconds)
        try:
            async with deadline, self._channel(environment):
                await super().run(instruction, environment, context)
            stop = "completed" if self._pending_completion else "shell-exit"
        except Stop as reason:
            stop, message = reason.kind, str(reason)
        except TimeoutError as error:
            if not deadline.expired():  # Harbor would take any TimeoutError for its own deadline
                raise RuntimeError(f"a time limit inside the agent: {error}") from error
            stop, message = "timeout", f"{self._seconds:g} s are over"
        finally:
            # what still runs must not change the files that are collected next
            frozen = await self._freeze(environment)
            self._record(context, {"stop": stop, "message": message, "frozen": frozen})

    def _channel(self, environment: BaseEnvironment) -> AbstractAsyncContextManager[Any]:
        if self._broker is None:
            return contextlib.nullcontext()
        if self._socket_dir is None:
            return ExecTransport(self._broker, environment)
        return UnixSocketTransport(self._broker, self._socket_dir)

    async def _freeze(self, environment: BaseEnvironment) -> bool:
        """Whether no process is left; false for environments that cannot say."""
        kill_all = getattr(environment, "kill_all", None)
        if kill_all is None:
            return False
        try:
            return bool(await kill_all() == 0)
        except RuntimeError as error:  # the sandbox is gone, and its processes with it
            self.logger.warning(f"kill_all: {error}")
            return False

    def _record(self, context: AgentContext, facts: dict[str, Any]) -> None:
        meter = self._llm.meter
        context.n_input_tokens, context.n_cache_tokens = meter.prompt, meter.cached
        context.n_output_tokens, context.cost_usd = meter.completion, meter.cost_usd
        context.metadata = {**(context.metadata or {}), **facts, "meter": asdict(meter)}
