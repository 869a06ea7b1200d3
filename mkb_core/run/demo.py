"""A local OpenAI-compatible server that replays recorded answers."""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, override

from mkb_core.bench.dsl import DSLS
from mkb_core.config import Record, load_yaml
from mkb_core.run.plan import ARMS, Attempt


class Keys(Record):
    """Keystrokes, verbatim, and the seconds that Terminus-2 waits after them."""

    keystrokes: str
    duration: float = 0.1


class Turn(Record):
    """One recorded answer."""

    analysis: str
    plan: str
    commands: tuple[Keys, ...] = ()
    task_complete: bool = False
    until: str = ""  # the turn waits until the terminal shows this text

    def answer(self) -> str:
        """The JSON that Terminus-2 asks its model for, in the order of fields that it expects."""
        return self.model_dump_json(exclude={"until"})


# Terminus-2 asks back once before it believes that a task is complete
LAST = Turn(analysis="The work is done.", plan="Nothing is left to do.", task_complete=True)

# how a recording waits for a verdict, however long it takes on this machine
WAIT = Turn(analysis="The verdict is not there yet.", plan="Wait.", commands=(Keys(keystrokes="", duration=1),))


@cache
def load(path: Path) -> tuple[Turn, ...]:
    """The turns of a recording; raises pydantic.ValidationError naming the field that is off."""
    return tuple(Turn.model_validate(turn) for turn in load_yaml(path))


class UnknownRecording(LookupError):
    """There is no recording of this attempt."""


class DemoServer:
    """Answers chat completions from the recordings in `directory` while the context is open."""

    def __init__(self, directory: Path) -> None:
        """One file an attempt, `<problem>-<dsl>-<arm>.yaml`: a list of turns."""
        self.directory = directory

    def __enter__(self) -> DemoServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, attempt: Attempt) -> str:
        """The api_base whose answers are the recording of this attempt, whatever model is asked for."""
        port = self._server.server_address[1]
        return f"http://127.0.0.1:{port}/{attempt.problem}/{attempt.dsl}/{attempt.arm}/v1"

    def answer(self, path: str, messages: list[dict[str, Any]]) -> str:
        """The next answer: the turn is the number of answers that the conversation has so far."""
        parts = path.strip("/").split("/")
        name = "-".join(parts[:3])
        known = sorted(p.stem for p in self.directory.glob("*.yaml"))
        if len(parts) < 4 or name not in known:
            raise UnknownRecording(f"no recording {name!r} in {self.directory.name}/; there are: {known}")
        return next_turn(load(self.directory / f"{name}.yaml"), messages).answer()


def next_turn(turns: tuple[Turn, ...], messages: list[dict[str, Any]]) -> Turn:
    """The turn after as many as the conversation has answers, waits left out."""
    given = [str(m.get("content")) for m in messages if m.get("role") == "assistant"]
    number = sum(answer != WAIT.answer() for answer in given)
    turn = turns[number] if number < len(turns) else LAST
    return WAIT if turn.until and turn.until not in str(messages[-1].get("content")) else turn


def recorded(directory: Path) -> list[str]:
    """Ids of the problems that have a recording of every attempt."""
    names = {path.stem for path in directory.glob("*.yaml")}
    wanted = [f"{dsl}-{arm}" for dsl in DSLS for arm in ARMS]
    ids = sorted({name.split("-")[0] for name in names})
    return [key for key in ids if all(f"{key}-{rest}" in names for rest in wanted)]


def completion(model: str, messages: list[dict[str, Any]], content: str) -> dict[str, Any]:
    """A chat completion in OpenAI's form; tokens are estimated as a quarter of the characters."""
    prompt_tokens = sum(len(str(message.get("content"))) for message in messages) // 4
    tokens = len(content) // 4
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    message = {"role": "assistant", "content": content}
    return {
        "id": "demo",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {**usage, "total_tokens": prompt_tokens + tokens},
    }


def _handler(server: DemoServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        @override
        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a replay has no log."""

        def do_POST(self) -> None:
            """Answer one request."""
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = server.answer(self.path, body["messages"])
                self._send(200, completion(body["model"], body["messages"], content))
            except UnknownRecording as error:
                self._send(404, {"error": {"message": str(error), "type": "not_found", "code": "404"}})
            except (KeyError, TypeError, ValueError) as error:
                text = f"{type(error).__name__}: {error}"
                self._send(400, {"error": {"message": text, "type": "bad_request", "code": "400"}})

        def _send(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
