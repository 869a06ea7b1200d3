"""What the supervisor sees of a runner from outside: walls, refused system calls, memory, helper threads."""

import contextlib
import fcntl
import os
import re
import select
import socket
import struct
from pathlib import Path

from mkb_core import seccomp
from mkb_core.bench.forkserver import receive

NOTIF_RECEIVE, NOTIF_SEND = 0xC0502100, 0xC0182101
_NOTIF, _ANSWER = struct.Struct("QIIiIQ6Q"), struct.Struct("QqiI")
EPERM = 1
RULES = {
    "process": ("fork vfork clone execve execveat", "solve and what it calls start no process"),
    "network": ("socket", "a kernel needs no network"),
    "tampering": ("ptrace process_vm_readv process_vm_writev pidfd_getfd", "a kernel looks into no process"),
}


class Watch:
    """One runner: the socket on which it reports its walls, then the listener for the calls its filter refuses."""

    def __init__(self, report: socket.socket) -> None:
        self.report: socket.socket | None = report
        self.listener: int | None = None
        self.unenforced: list[str] | None = None  # None until the runner has told
        self.refused: list[str] = []

    def sources(self) -> list[socket.socket | int]:
        """What to poll."""
        return [s for s in (self.report, self.listener) if s is not None]

    def handle(self, ready: list[socket.socket | int]) -> None:
        """Read what came."""
        if self.report is not None and self.report in ready:
            message, fds = receive(self.report)
            if message is not None:
                self.unenforced = [str(w) for w in message["unenforced"]]
                self.listener = fds[0] if fds else None
            self.report.close()
            self.report = None
        elif self.listener is not None and self.listener in ready:
            poll = select.poll()  # of a process that is gone it is ready too, and to receive would wait
            poll.register(self.listener, select.POLLIN)
            if any(events & select.POLLIN for _, events in poll.poll(0)):
                self.refuse(self.listener)
            else:
                os.close(self.listener)
                self.listener = None

    def refuse(self, listener: int) -> None:
        """Note one system call that the filter held back, and answer that it is not permitted."""
        data = bytearray(_NOTIF.size)
        try:
            fcntl.ioctl(listener, NOTIF_RECEIVE, data)
            identity, _, _, number, *_ = _NOTIF.unpack(data)
            if len(self.refused) < 100:
                self.refused.append(seccomp.name_of(number))
            fcntl.ioctl(listener, NOTIF_SEND, _ANSWER.pack(identity, 0, -EPERM, 0))
        except OSError:  # the call was interrupted, or its process killed
            return

    def broken_rule(self) -> str:
        """The rule that the first refused call breaks, as the message of a verdict; empty where there is none."""
        for name in self.refused:
            for rule, (names, advice) in RULES.items():
                if name in names.split():
                    return f"rule `{rule}`: the system call `{name}` was refused; {advice}"
        return ""

    def close(self) -> None:
        """Close what is open."""
        if self.report is not None:
            self.report.close()
        if self.listener is not None:
            os.close(self.listener)
        self.report = self.listener = None


def innermost(pid: int) -> int:
    """The process in the box: the last of the line that begins with the one outside."""
    while True:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return pid
        if not children:
            return pid
        pid = int(children[0])


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is no file's, mapped memory files included; 0 where it is gone."""
    with contextlib.suppress(OSError):
        # bytes, and whole lines: the name, which comes first, is the process's own choice
        data = Path(f"/proc/{pid}/status").read_bytes()
        fields = re.findall(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB$", data, re.MULTILINE)
        return sum(map(int, fields)) << 10
    return 0


def helper_seconds(pid: int) -> float:
    """CPU seconds of a process's threads other than its main one (the first field of schedstat, nanoseconds)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        if task.name != str(pid):
            with contextlib.suppress(OSError, ValueError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9
