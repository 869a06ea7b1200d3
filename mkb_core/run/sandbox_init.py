"""PID 1 of the sandbox: starts and kills processes for the host over one inherited socket.

It runs inside, as a script of the bare interpreter: only the standard library, none of this package.
The socket never exists as a path, so nothing in the sandbox can reach it. Every process of the sandbox
descends from this one and so inherits its namespaces, filter, limits and empty capability set; there is
no second way in that could forget one of them.

One JSON object per datagram, file descriptors by SCM_RIGHTS:

    host  {"op": "spawn", "id", "argv", "cwd", "env"} + [stdin, stdout, stderr]
          {"op": "kill", "id"}         the process group that spawn `id` leads
          {"op": "kill_all", "id"}     every process but this one
    init  {"id": 0}                    ready
          {"id", "rc"}                 a spawned process ended
          {"id", "error"}              it could not be started
          {"id", "left"}               answer to kill_all: the processes that are still there
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_DUMPABLE = 4
MAX_MESSAGE = 1 << 18
MAX_FILE_BYTES = 4 << 30


class Init:
    """The processes started so far and the socket to the host."""

    def __init__(self, sock: socket.socket) -> None:
        """Nothing runs yet."""
        self.sock = sock
        self.running: dict[int, int] = {}  # pid -> id of its spawn

    def send(self, message: dict[str, Any]) -> None:
        """Tell the host; without a host there is no reason to live."""
        try:
            self.sock.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)  # the kernel kills the rest of the pid namespace

    def reap(self) -> None:
        """Collect the dead, the adopted ones included."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.running:
                    self.send({"id": self.running.pop(pid), "rc": os.waitstatus_to_exitcode(status)})

    def handle(self, message: dict[str, Any], fds: list[int]) -> None:
        """Carry out one request of the host."""
        if message["op"] == "spawn":
            self.spawn(message, fds)
        elif message["op"] == "kill":
            for pid in [p for p, spawned in self.running.items() if spawned == message["id"]]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        elif message["op"] == "kill_all":
            self.send({"id": message["id"], "left": self.kill_all()})

    def spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        """Start a process in a session of its own."""
        try:
            pid = os.fork()
        except OSError as exc:
            self.send({"id": message["id"], "error": str(exc)})
            return
        if pid == 0:
            become(message, fds)
        self.running[pid] = message["id"]

    def kill_all(self) -> int:
        """SIGKILL all others until none is left; a fork bomb races this, hence the repetition."""
        left = 0
        for _ in range(400):
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self.reap()
            left = sum(name.isdigit() for name in os.listdir("/proc")) - 1  # noqa: PTH208
            if not left:
                break
            time.sleep(0.005)
        return left


def become(message: dict[str, Any], fds: list[int]) -> None:
    """Turn the forked child into the requested process; never returns."""
    try:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.closerange(3, 256)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # when memory runs out, rather it than PID 1
            Path("/proc/self/oom_score_adj").write_text("500")
        os.chdir(message["cwd"])
        os.execve(message["argv"][0], message["argv"], message["env"])
    except BaseException as exc:
        os.write(2, f"sandbox: {exc}\n".encode())
    finally:
        os._exit(127)


def restrict(limits: dict[str, Any]) -> None:
    """Limits that all descendants inherit; `pids` and `cpus` only where no cgroup holds them."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # same uid as the agent: no ptrace, no /proc/1/fd
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    if limits.get("pids"):
        # set in here: outside, a rootless host would count all other processes of its user as well
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["pids"], limits["pids"]))
    if limits.get("cpus"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: limits["cpus"]])


def main() -> None:
    """Serve the host until it goes away."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    restrict(json.loads(sys.argv[2]))
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    selector.register(wake_r, selectors.EVENT_READ)
    init = Init(sock)
    init.send({"id": 0})
    while True:
        for key, _ in selector.select():
            if key.fd == wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
                init.reap()
                continue
            data, fds, _flags, _address = socket.recv_fds(sock, MAX_MESSAGE, 3)
            if not data:
                os._exit(0)
            init.handle(json.loads(data), fds)
            for fd in fds:
                os.close(fd)


if __name__ == "__main__":
    main()
