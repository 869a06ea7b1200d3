"""The feedback channel's host side: the broker counts and answers, transports only move bytes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mkb_core.bench.verdict import Verdict
from mkb_core.records import write_whole

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

MAX_BYTES = 1 << 20
MAX_CLIENTS = 4
READ_SECONDS = 10.0
PRINTED_CHARACTERS = 2000
MESSAGE_CHARACTERS = 4000
SOCKET_NAME = "s.sock"
MAILBOX = "/tmp/.submit"
EMULATED = "emulated: correctness only, no speed"
MEASURED = ("error_ratio", "speedup", "kernel_ms", "kernel_p10_ms", "kernel_p90_ms", "baseline_ms")
DIRECTORY = re.compile(r"(?<![\w./])(?:/\S*/site-packages/|/(?:[\w.+@%~-]+/)+)")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\S\n\t ]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")

Evaluate = Callable[[int, bytes], Awaitable[dict[str, Any]]]


def feedback(verdict: Verdict, left: int) -> dict[str, Any]:
    """What the agent may see of a verdict: nothing of the host, nothing that repeats a draw."""
    seen: dict[str, Any] = {"status": verdict.status, "message": _shown(verdict.message, MESSAGE_CHARACTERS)}
    for name in MEASURED:
        value = getattr(verdict, name)
        if value is not None:
            seen[name] = value
    if verdict.device == "emulated":
        seen["note"] = EMULATED
    if verdict.output.strip():
        seen["printed"] = _shown(verdict.output, PRINTED_CHARACTERS)
    return {**seen, "left": left}


def _shown(text: str, limit: int) -> str:
    text = DIRECTORY.sub("", CONTROL.sub("", text))
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


class NotJudged(Exception):
    """The host could not judge a submission; it does not count."""


class Broker:
    """Takes bytes, counts them, has them judged one at a time, and keeps everything in `ledger_dir`.

    `evaluate(number, source)` returns `feedback` of the verdict: NN.json holds it and the agent gets it, with
    the broker's own count of what is left. The directory must not be visible in the sandbox.
    """

    def __init__(self, ledger_dir: Path, evaluate: Evaluate, limit: int) -> None:
        self.directory, self.evaluate, self.limit = ledger_dir, evaluate, limit
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ledger = self.directory / "ledger.jsonl"
        self.taken, self.returned = self._reopen()
        self._open = True
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()
        self._unsaved: dict[int, dict[str, Any]] = {}

    @property
    def used(self) -> int:
        """Submissions that count."""
        return self.taken - self.returned

    @property
    def left(self) -> int:
        """Submissions that are left."""
        return max(0, self.limit - self.used)

    async def submit(self, data: bytes) -> dict[str, Any]:
        """The answer for the agent; whoever stops waiting for it does not stop the evaluation."""
        if len(data) > MAX_BYTES:
            return self._refusal(f"kernel.py is larger than {MAX_BYTES} bytes")
        task = asyncio.create_task(self._submit(data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Take nothing more, and wait for the evaluation in progress: each one counted gets its result."""
        self._open = False
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._save()

    async def _submit(self, data: bytes) -> dict[str, Any]:
        async with self._one_at_a_time:
            if not self._open:
                return self._refusal("the attempt is over")
            if self.used >= self.limit:
                return self._refusal(f"all {self.limit} submissions are used")
            try:
                number = self._count(data)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                return self._refusal(f"not stored ({reason}), hence not counted; try again later")
            try:
                result = {**await self.evaluate(number, data), "number": number, "left": self.left}
            except NotJudged as error:
                self._give_back(number)
                self._keep(number, {"error": str(error), "number": number})
                return self._refusal("the verifier failed, which says nothing about your kernel; not counted")
            except Exception as error:  # the verifier's fault, whatever it is: the attempt goes on
                self._keep(number, {"error": f"{type(error).__name__}: {error}", "number": number})
                return self._refusal("the verifier failed, which says nothing about your kernel")
            self._keep(number, result)
            return result

    def _refusal(self, reason: str) -> dict[str, Any]:
        return {"error": reason, "left": self.left}

    def _give_back(self, number: int) -> None:
        """The host could not judge this one: a second line in the ledger takes its count back."""
        line = json.dumps({"n": number, "returned": True, "time": time.time()})
        _write_durably(self.ledger, "ab", line.encode() + b"\n")
        self.returned += 1

    def _reopen(self) -> tuple[int, int]:
        """Submissions taken and given back by earlier runs; a line torn by a crash counts as taken."""
        if not self.ledger.exists():
            return 0, 0
        data = self.ledger.read_bytes()
        if data and not data.endswith(b"\n"):
            with self.ledger.open("ab") as file:
                file.write(b"\n")
        lines = [line for line in data.splitlines() if line.strip()]
        returned = sum(b'"returned": true' in line for line in lines)
        return len(lines) - returned, returned

    def _count(self, data: bytes) -> int:
        """Snapshot and count, on disk before anything is judged: a crash cannot give it back."""
        number = self.taken + 1
        digest = hashlib.sha256(data).hexdigest()
        line = {"n": number, "sha256": digest, "bytes": len(data), "time": time.time()}
        snapshot = self.directory / f"{number:02d}.py"
        counted = self.ledger.stat().st_size if self.ledger.exists() else 0
        try:
            _write_durably(snapshot, "wb", data)
            _write_durably(self.ledger, "ab", json.dumps(line).encode() + b"\n")
        except OSError:  # a full disk: half a line would count when the ledger is opened again
            with contextlib.suppress(OSError):
                snapshot.unlink(missing_ok=True)
                os.truncate(self.ledger, counted)
            raise
        self.taken = number
        return number

    def _keep(self, number: int, result: dict[str, Any]) -> None:
        self._unsaved[number] = result
        self._save()

    def _save(self) -> None:
        """Write the results that are not on disk; what finds it full is tried again with the next one."""
        for number, result in list(self._unsaved.items()):
            try:
                write_whole(self.directory / f"{number:02d}.json", json.dumps(result, indent=1))
            except OSError:
                return
            del self._unsaved[number]


def _write_durably(path: Path, mode: Literal["wb", "ab"], data: bytes) -> None:
    """On disk when this returns."""
    with path.open(mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class UnixSocketTransport:
    """A socket in `directory`, which the sandbox sees read-only as /submit: length and bytes in, JSON out."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker, self.path = broker, directory / SOCKET_NAME
        self._slots = asyncio.Semaphore(MAX_CLIENTS)
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> UnixSocketTransport:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, str(self.path), backlog=8)
        # the sandbox's uid has to enter the directory and to write to the socket
        self.path.parent.chmod(0o755)
        self.path.chmod(0o666)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.path.unlink(missing_ok=True)
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(json.dumps(await self._answer(reader)).encode())
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass  # a client that is slow, silent or gone
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        if self._slots.locked():
            return {"error": "too many submissions at a time", "left": self.broker.left}
        async with self._slots:
            async with asyncio.timeout(READ_SECONDS):
                (size,) = struct.unpack("!I", await reader.readexactly(4))
                if size > MAX_BYTES:
                    return {"error": f"kernel.py is larger than {MAX_BYTES} bytes", "left": self.broker.left}
                data = await reader.readexactly(size)
            return await self.broker.submit(data)


class ExecTransport:
    """A mailbox inside the sandbox, emptied through `environment.exec`: needs no mount.

    Each exec waits inside for up to `long_poll` seconds, so an idle channel costs few calls.
    """

    TAKE = (
        "cd %s/in || exit 1; for i in $(seq %d); do for f in *.py; do "
        '[ -f "$f" ] && [ ! -L "$f" ] && { echo "$f"; head -c %d "$f" | base64 -w0; rm -f "$f"; exit; }; '
        "done; sleep 0.2; done"
    )

    def __init__(
        self, broker: Broker, environment: BaseEnvironment, long_poll: float = 20.0, mailbox: str = MAILBOX
    ) -> None:
        self.broker, self.environment, self.long_poll = broker, environment, long_poll
        self.mailbox = mailbox

    async def __aenter__(self) -> ExecTransport:
        await self.environment.exec(f"mkdir -p {self.mailbox}/in {self.mailbox}/out")
        self._task = asyncio.create_task(self._loop())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _loop(self) -> None:
        take = self.TAKE % (self.mailbox, max(1, self.long_poll / 0.2), MAX_BYTES + 1)
        while True:
            try:
                found = await self.environment.exec(take, timeout_sec=int(self.long_poll) + 60)
                lines = (found.stdout or "").split("\n")
                if found.return_code or len(lines) < 2:
                    await asyncio.sleep(0 if found.return_code == 0 else 1)
                    continue
                await self._reply(lines[0], await self.broker.submit(base64.b64decode(lines[1])))
            except (RuntimeError, binascii.Error):  # a sandbox in trouble: the agent's own doing, or over soon
                await asyncio.sleep(1)

    async def _reply(self, name: str, reply: dict[str, Any]) -> None:
        token = name.removesuffix(".py")
        if not (token.isascii() and token.isalnum() and len(token) <= 32):
            return  # made by hand, and no name for a file of ours
        text = base64.b64encode(json.dumps(reply).encode()).decode()
        place = f"{self.mailbox}/out/{token}.json"
        command = f"echo {text} | base64 -d > {place}.part && mv {place}.part {place}"
        await self.environment.exec(command, timeout_sec=60)
