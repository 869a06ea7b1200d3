"""A process that has imported torch and a DSL once and forks a fresh child for every role in a verdict.

The server never touches CUDA and never reads a submission, so each child starts clean and in well under a second.
It adopts what its children leave behind and kills it.
"""

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MESSAGE_BYTES = 1 << 16


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """One JSON message with file descriptors over a SOCK_SEQPACKET socket."""
    socket.send_fds(channel, [json.dumps(message).encode()], list(fds))


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors; None at the end of the connection."""
    data, fds, _flags, _addr = socket.recv_fds(channel, MESSAGE_BYTES, 64)
    return (json.loads(data) if data else None), fds


def main() -> None:
    """Entry point: `python -m mkb_core.bench.forkserver FD ROLE DSL DEVICE`."""
    fd, role, dsl, device = sys.argv[1:5]
    control = socket.socket(fileno=int(fd))
    os.set_inheritable(control.fileno(), False)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    context = importlib.import_module(f"mkb_core.bench.{role}").preload(dsl, device)
    send(control, {"ready": True})
    Server(control, role, context).serve()


class Server:
    """The loop of the server process."""

    def __init__(self, control: socket.socket, role: str, context: Any) -> None:
        self.control, self.role, self.context = control, role, context
        self.children: dict[int, int] = {}  # pid -> number of the request
        self.selector = selectors.DefaultSelector()
        self.wake, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork, kill and report until the other end closes; then take everything along."""
        selector = self.selector
        selector.register(self.control, selectors.EVENT_READ)
        selector.register(self.wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == self.wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake, 4096)
                    self.reap()
                    continue
                message, fds = receive(self.control)
                if message is None:
                    self.children.clear()
                    self.sweep()
                    os._exit(0)
                self.handle(message, fds)

    def handle(self, message: dict[str, Any], fds: list[int]) -> None:
        """Start or kill one child."""
        if "kill" in message:
            for pid, number in list(self.children.items()):
                if number == message["kill"]:
                    kill_tree(pid)
            return
        pid = os.fork()
        if pid == 0:
            self.run_child(message, fds)
        self.children[pid] = message["number"]
        send(self.control, {"started": message["number"], "pid": pid})
        for fd in fds:
            os.close(fd)

    def run_child(self, message: dict[str, Any], fds: list[int]) -> None:
        """Become the child; never returns. Descriptors: the channel, stdout/stderr, the report on the box."""
        code = 70
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            self.selector.close()
            os.close(self.wake)
            os.close(self.wake_writer)
            os.dup2(fds[1], 1)
            os.dup2(fds[1], 2)
            os.close(fds[1])
            module = importlib.import_module(f"mkb_core.bench.{self.role}")
            message["report"] = fds[2]
            module.main(socket.socket(fileno=fds[0]), message, self.context)
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def reap(self) -> None:
        """Report every child that ended, and kill the descendants that it left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.children.pop(pid, None)
            if number is not None:
                self.sweep()
                send(self.control, {"ended": number, "code": os.waitstatus_to_exitcode(status)})

    def sweep(self) -> None:
        """Kill every process below this one that is not below a living child of ours."""
        for _ in range(1000):  # a fork bomb races this loop, so it repeats until nothing is left
            strays = [pid for pid in children_of(os.getpid()) if pid not in self.children]
            if not strays:
                return
            for pid in strays:
                kill_tree(pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def children_of(pid: int) -> list[int]:
    """Process ids whose parent is `pid`, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # bytes: a process may call itself anything
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL a process and everything below it; stopped first, so that it cannot fork on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
