"""The host's end of the socket to PID 1 of a sandbox."""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MiB = 1 << 20
MAX_MESSAGE = 1 << 18
READY = 0
NOT_STARTED = 254  # exit code of a command that the process limit kept from starting
EOF_GRACE_S = 0.25  # a background child may hold the pipe open for ever


class SandboxDied(RuntimeError):
    """The sandbox is gone."""


@dataclass(frozen=True)
class Completed:
    """What a command left: at most the asked-for bytes of output and the count of those dropped."""

    rc: int
    out: bytes
    err: bytes
    dropped: int


class _Capture:
    """The reading end of a pipe: keeps `limit` bytes, drains and counts the rest."""

    def __init__(self, limit: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self.data, self.limit, self.dropped = bytearray(), limit, 0
        self.eof: asyncio.Future[None] = self.loop.create_future()
        self.loop.add_reader(self.fd, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return
        if not chunk:
            self.loop.remove_reader(self.fd)
            self.eof.set_result(None)
            return
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        self.dropped += max(0, len(chunk) - room)

    def close(self) -> None:
        self.loop.remove_reader(self.fd)
        os.close(self.fd)


class ExecServer:
    """Runs commands in the sandbox; belongs to the event loop that called `attach`."""

    def __init__(self) -> None:
        """A connected pair of sockets: one end for the sandbox, one for us."""
        self._host, self.child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host.setblocking(False)
        # a message has to fit as a whole, and the default is less than the longest
        self._host.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_MESSAGE)
        self._ids = itertools.count(READY + 1)
        self._replies: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._alive = True

    async def attach(self, launch: Callable[[], Any], timeout: float) -> bool:
        """Await `launch()`, which must hand `child` to the sandbox; true once PID 1 is ready."""
        with self._reply_to(READY) as replies:
            asyncio.get_running_loop().add_reader(self._host, self._receive)
            await launch()
            self.child.close()
            with contextlib.suppress(TimeoutError):
                return "dead" not in await asyncio.wait_for(replies.get(), timeout)
        return False

    def close(self) -> None:
        """Let go: PID 1 sees the end of the stream and exits."""
        self._lost()
        self._host.close()
        self.child.close()

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: dict[str, str],
        timeout: float | None,
        limit: int,
        stdin: bytes | None = None,
    ) -> Completed:
        """Run a command to its end; `RuntimeError` when it takes longer than `timeout` seconds."""
        out, err = _Capture(limit), _Capture(MiB)
        feeder: asyncio.Task[None] | None = None
        number = next(self._ids)
        try:
            with self._reply_to(number) as replies:
                stdin_r, stdin_w = os.pipe2(os.O_CLOEXEC)
                message = {"op": "spawn", "id": number, "argv": list(argv), "cwd": cwd, "env": env}
                try:
                    self._send(message, [stdin_r, out.write_fd, err.write_fd])
                except BaseException:
                    os.close(stdin_w)
                    raise
                finally:
                    for fd in (stdin_r, out.write_fd, err.write_fd):
                        os.close(fd)
                feeder = asyncio.create_task(_feed(stdin_w, stdin or b""))
                reply = await self._finished(number, replies, timeout)
            if "error" in reply:
                return Completed(NOT_STARTED, b"", f"sandbox: {reply['error']}".encode(), 0)
            await asyncio.wait([out.eof, err.eof], timeout=EOF_GRACE_S)
            return Completed(reply["rc"], bytes(out.data), bytes(err.data), out.dropped)
        finally:
            out.close()
            err.close()
            if feeder is not None:
                # not awaited to its end: some process inside may hold the pipe open and never read
                feeder.cancel()
                await asyncio.wait([feeder])

    async def kill_all(self, timeout: float = 30) -> int:
        """SIGKILL every process in the sandbox but PID 1; how many are left."""
        number = next(self._ids)
        with self._reply_to(number) as replies:
            self._send({"op": "kill_all", "id": number})
            try:
                reply = await asyncio.wait_for(replies.get(), timeout)
            except TimeoutError:
                raise SandboxDied(f"PID 1 of the sandbox did not answer within {timeout} s") from None
        if "dead" in reply:
            raise SandboxDied("the sandbox died")
        return int(reply["left"])

    def kill_all_soon(self) -> None:
        """The same without waiting, from any thread."""
        with contextlib.suppress(SandboxDied, OSError):
            self._send({"op": "kill_all", "id": next(self._ids)})

    @contextlib.contextmanager
    def _reply_to(self, number: int) -> Any:
        replies = self._replies[number] = asyncio.Queue()
        try:
            yield replies
        finally:
            del self._replies[number]

    async def _finished(
        self, number: int, replies: asyncio.Queue[dict[str, Any]], timeout: float | None
    ) -> dict[str, Any]:
        try:
            reply = await asyncio.wait_for(replies.get(), timeout)
        except BaseException as exc:  # also cancellation: nobody will ask for this command again
            with contextlib.suppress(SandboxDied, OSError):
                self._send({"op": "kill", "id": number})
            if isinstance(exc, TimeoutError):  # Harbor takes any TimeoutError for the agent's own deadline
                raise RuntimeError(f"Command timed out after {timeout} seconds") from None
            raise
        if "dead" in reply:
            raise SandboxDied("the sandbox died while it ran a command")
        return reply

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if not self._alive:
            raise SandboxDied("the sandbox is not running")
        data = json.dumps(message).encode()
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"a command of {len(data)} bytes is more than the {MAX_MESSAGE} that fit")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._host.sendmsg([data], rights)
        except BlockingIOError:
            raise SandboxDied("PID 1 of the sandbox does not read its socket") from None
        except (BrokenPipeError, ConnectionResetError):
            raise SandboxDied("the sandbox is not running") from None

    def _receive(self) -> None:
        while self._alive:
            try:
                data = self._host.recv(MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            message = json.loads(data)
            if message["id"] in self._replies:
                self._replies[message["id"]].put_nowait(message)

    def _lost(self) -> None:
        if self._alive:
            self._alive = False
            with contextlib.suppress(RuntimeError):  # no loop any more: nobody is waiting either
                asyncio.get_running_loop().remove_reader(self._host)
            for replies in self._replies.values():
                replies.put_nowait({"dead": True})


async def _feed(fd: int, data: bytes) -> None:
    """Write to a pipe until all is through or nobody reads any more; closes `fd` also when cancelled."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    view = memoryview(data)
    try:
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                writable = loop.create_future()
                loop.add_writer(fd, _resolve, writable)
                try:
                    await writable
                finally:
                    loop.remove_writer(fd)
    except OSError:
        pass  # the reader did not want it all
    finally:
        os.close(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
