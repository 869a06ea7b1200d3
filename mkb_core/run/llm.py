"""LiteLLM with one retry policy, a time limit per call, a spending limit and a meter."""

import os

# both are read at import: no telemetry, and no price list from the network
os.environ.setdefault("HARBOR_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import litellm
from harbor.llms.base import (
    ContextLengthExceededError,
    LLMResponse,
    OutputLengthExceededError,
)
from harbor.llms.lite_llm import LiteLLM
from harbor.models.metric import UsageInfo
from litellm import exceptions

from mkb_core.run.models import Price

TRANSIENT = (
    exceptions.RateLimitError,
    exceptions.Timeout,
    exceptions.APIConnectionError,
    exceptions.InternalServerError,
    exceptions.ServiceUnavailableError,
    exceptions.BadGatewayError,
    TimeoutError,
)
NO_CREDIT = ("insufficient_quota", "insufficient balance", "exceeded your current quota")
NO_KEY = "none"  # the client insists on one, a local server does not read it
KEPT_ERRORS = 20


class Stop(BaseException):
    """End of an attempt; `kind` says why.

    Not an Exception: Terminus-2 retries or swallows every Exception of a model call.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Limits:
    """When to wait and when to give up."""

    budget_usd: float | None = None
    call_seconds: float = 900.0
    retry_seconds: float = 600.0  # of one answer's failures together
    first_delay: float = 1.0
    truncated: int = 3  # answers in a row that ended at the output limit
    overflows: int = 8  # of the context in one attempt; each costs up to four more calls


@dataclass
class Meter:
    """What an attempt asked for and spent, truncated answers included."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    overflows: int = 0
    waited_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


def warm_up() -> None:
    """Make LiteLLM import now, in whatever thread, what it would otherwise import during its first call."""
    litellm.suppress_debug_info = True
    hello = [{"role": "user", "content": "hello"}]
    litellm.completion(model="openai/warm-up", messages=hello, mock_response="hello")


class MeteredLiteLLM(LiteLLM):  # type: ignore[misc]
    """Harbor's LiteLLM without its own retries; gives up by raising `Stop`."""

    def __init__(self, *args: Any, price: Price, key_variable: str | None, limits: Limits, **kwargs: Any) -> None:
        """See `LiteLLM` for the rest; the key is read from the host's environment at every call."""
        super().__init__(*args, max_retries=0, **kwargs)
        self.meter = Meter()
        self._price, self._key_variable, self._limits = price, key_variable, limits
        self._truncated = 0

    @override
    async def call(
        self,
        prompt: str,
        message_history: Sequence[Any] = (),
        response_format: Any = None,
        logging_path: Path | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        """One answer; waits and asks again on errors that may pass, until `retry_seconds` are over."""
        started, delay = time.monotonic(), self._limits.first_delay
        ask = LiteLLM.call.__wrapped__  # past the retries that decorate it
        while True:
            self._check_budget()
            self.meter.calls += 1
            try:
                async with asyncio.timeout(self._limits.call_seconds):
                    answer: LLMResponse = await ask(
                        self, prompt, list(message_history), response_format, logging_path, **kwargs
                    )
                self._truncated = 0
                return answer
            except (OutputLengthExceededError, ContextLengthExceededError) as error:
                self._count_excess(error)
                raise
            except TRANSIENT as error:
                self._note(error)
                if any(phrase in str(error).lower() for phrase in NO_CREDIT):
                    raise self._unavailable(error) from None
                pause = delay * (0.5 + random.random())
                if time.monotonic() - started + pause > self._limits.retry_seconds:
                    raise self._unavailable(error) from None
            except Exception as error:  # a refused key or request: asking again changes nothing
                self._note(error)
                raise self._unavailable(error) from None
            self.meter.waited_seconds += pause
            await asyncio.sleep(pause)
            delay = min(60.0, 2 * delay)

    def _check_budget(self) -> None:
        limit = self._limits.budget_usd
        if limit is not None and self.meter.cost_usd >= limit:
            raise Stop("budget", f"spent ${self.meter.cost_usd:.4f} of ${limit:g}")

    def _count_excess(self, error: Exception) -> None:
        """Terminus-2 answers both by asking again, without end."""
        if isinstance(error, OutputLengthExceededError):
            self._truncated += 1
            if self._truncated > self._limits.truncated:
                raise Stop("truncated", f"{self._truncated} answers in a row hit the output limit") from None
        else:
            self.meter.overflows += 1
            if self.meter.overflows > self._limits.overflows:
                raise Stop("context", f"the context overflowed {self.meter.overflows} times") from None

    def _unavailable(self, error: Exception) -> Stop:
        kind = "auth" if isinstance(error, exceptions.AuthenticationError) else "model"
        return Stop(kind, self._without_key(f"{type(error).__name__}: {error}"))

    def _note(self, error: Exception) -> None:
        if len(self.meter.errors) < KEPT_ERRORS:
            self.meter.errors.append(type(error).__name__)

    def _without_key(self, text: str) -> str:
        """Providers like to quote the key that they refuse."""
        key = self._key()
        return text if key == NO_KEY else text.replace(key, "***")

    def _key(self) -> str:
        return os.environ.get(self._key_variable or "") or NO_KEY

    @override
    def _build_base_kwargs(self, logging_path: Path | None = None) -> dict[str, Any]:
        return {**super()._build_base_kwargs(logging_path), "api_key": self._key()}

    @override
    def _extract_usage_info(self, response: Any) -> UsageInfo | None:
        """Counts every answer, also one that is thrown away, at our price."""
        usage = super()._extract_usage_info(response)
        if usage is None:
            return None
        prompt, cached, completion = usage.prompt_tokens, usage.cache_tokens, usage.completion_tokens
        cost = self._price.cost(prompt, cached, completion)
        self.meter.prompt += prompt
        self.meter.cached += cached
        self.meter.completion += completion
        self.meter.cost_usd += cost
        return usage.model_copy(update={"cost_usd": cost})
