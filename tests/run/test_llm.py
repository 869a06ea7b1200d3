"""The metered model backend against a server that misbehaves on request."""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("harbor")

from harbor.llms.base import ContextLengthExceededError, OutputLengthExceededError

from mkb_core.run.llm import Limits, MeteredLiteLLM, Stop
from mkb_core.run.models import Price

# litellm defines such a type in a module that it imports at its first call
pytestmark = pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning")

KEY = "sk-host-secret-1234"
PRICE = Price(input=10.0, cached=1.0, output=100.0)
# one answer: 1000 tokens in, of which 400 cached, 50 out
COST = (600 * 10 + 400 * 1 + 50 * 100) / 1e6


class Server:
    """Answers from a list of replies; the last one repeats."""

    def __init__(self, *replies):
        self.replies, self.requests, self.keys = list(replies), 0, set()

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                reply = outer.replies[min(outer.requests, len(outer.replies) - 1)]
                outer.requests += 1
                outer.keys.add(self.headers["Authorization"])
                if reply == "hang":
                    time.sleep(0.6)
                    return
                status, body = reply
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def model(self, **limits) -> MeteredLiteLLM:
        limits = {"first_delay": 0.01, "retry_seconds": 0.3, **limits}
        return MeteredLiteLLM(
            "openai/test",
            api_base=f"http://127.0.0.1:{self.server.server_address[1]}/v1",
            price=PRICE,
            key_variable="TEST_KEY",
            limits=Limits(**limits),
        )


def answer(finish: str = "stop"):
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "total_tokens": 1050,
        "prompt_tokens_details": {"cached_tokens": 400},
    }
    message = {"role": "assistant", "content": "hello"}
    choices = [{"index": 0, "finish_reason": finish, "message": message}]
    return 200, {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "test",
        "choices": choices,
        "usage": usage,
    }


def fault(status: int, message: str = "scripted", code: str | None = None):
    return status, {"error": {"message": message, "type": "x", "code": code or str(status)}}


OVERFLOW = fault(400, "This model's maximum context length is 10 tokens", "context_length_exceeded")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


def ask(model: MeteredLiteLLM):
    return asyncio.run(model.call("hi"))


def stopped(model: MeteredLiteLLM) -> Stop:
    with pytest.raises(Stop) as caught:
        ask(model)
    return caught.value


def test_meters_tokens_and_cost_at_our_price():
    with Server(answer()) as server:
        model = server.model()
        reply = ask(model)
    assert reply.content == "hello"
    assert reply.usage.cost_usd == pytest.approx(COST)
    assert model.meter.cost_usd == pytest.approx(COST)
    assert (model.meter.prompt, model.meter.cached, model.meter.completion) == (1000, 400, 50)
    assert server.keys == {f"Bearer {KEY}"}


def test_without_a_key_variable_no_key_of_the_host_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Server(answer()) as server:
        model = server.model()
        model._key_variable = None
        ask(model)
    assert server.keys == {"Bearer none"}


def test_waits_out_what_may_pass():
    with Server(fault(500), fault(429), fault(503), answer()) as server:
        model = server.model(retry_seconds=10)
        assert ask(model).content == "hello"
        assert server.requests == 4
    assert len(model.meter.errors) == 3
    assert model.meter.waited_seconds > 0
    assert model.meter.prompt == 1000


def test_gives_up_when_the_time_for_retries_is_over():
    with Server(fault(500)) as server:
        model = server.model()
        stop = stopped(model)
        assert stop.kind == "model"
        assert 2 <= server.requests <= 8
        assert server.requests == model.meter.calls


@pytest.mark.parametrize(("status", "kind"), [(401, "auth"), (400, "model"), (404, "model"), (403, "model")])
def test_asks_once_where_asking_again_changes_nothing(status, kind):
    with Server(fault(status, f"refused {KEY}")) as server:
        stop = stopped(server.model(retry_seconds=60))
        assert server.requests == 1
    assert stop.kind == kind
    assert KEY not in str(stop)
    assert "refused ***" in str(stop)


def test_empty_account_is_not_waited_for():
    quota = fault(429, "You exceeded your current quota", "insufficient_quota")
    with Server(quota) as server:
        assert stopped(server.model(retry_seconds=60)).kind == "model"
        assert server.requests == 1


def test_hanging_call_is_cut_off_and_repeated():
    with Server("hang", answer()) as server:
        assert ask(server.model(call_seconds=0.3, retry_seconds=10)).content == "hello"
    assert server.requests == 2


def test_budget_stops_before_the_next_call():
    with Server(answer()) as server:
        model = server.model(budget_usd=1.5 * COST)

        async def talk():
            for _ in range(3):
                await model.call("hi")

        with pytest.raises(Stop, match="spent") as caught:
            asyncio.run(talk())
        assert server.requests == 2
    assert caught.value.kind == "budget"


async def excess(model: MeteredLiteLLM, kind: type[Exception], times: int):
    for _ in range(times):
        with pytest.raises(kind):
            await model.call("hi")
    with pytest.raises(Stop) as caught:
        await model.call("hi")
    return caught.value


def test_truncated_answers_are_capped_and_billed():
    with Server(answer("length")) as server:
        model = server.model(truncated=2)
        stop = asyncio.run(excess(model, OutputLengthExceededError, 2))
    assert stop.kind == "truncated"
    assert model.meter.cost_usd == pytest.approx(3 * COST)


def test_a_whole_answer_resets_the_count_of_truncated_ones():
    with Server(answer("length"), answer(), answer("length")) as server:
        model = server.model(truncated=1)

        async def talk():
            with pytest.raises(OutputLengthExceededError):
                await model.call("hi")
            await model.call("hi")
            return await excess(model, OutputLengthExceededError, 1)

        assert asyncio.run(talk()).kind == "truncated"
        assert server.requests == 4


def test_context_overflows_are_capped_even_between_good_answers():
    with Server(OVERFLOW, answer(), OVERFLOW, answer(), OVERFLOW) as server:
        model = server.model(overflows=2)

        async def talk():
            for _ in range(2):
                with pytest.raises(ContextLengthExceededError):
                    await model.call("hi")
                await model.call("hi")
            await model.call("hi")

        with pytest.raises(Stop) as caught:
            asyncio.run(talk())
    assert caught.value.kind == "context"


def test_stop_is_not_an_exception():
    # Terminus-2 swallows Exception in several places
    assert not issubclass(Stop, Exception)
