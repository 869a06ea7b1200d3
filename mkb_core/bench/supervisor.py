"""Starts, watches and kills the processes of a verdict; holds no tensor and imports no torch."""

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mkb_core.bench import launches
from mkb_core.bench.forkserver import receive, send
from mkb_core.bench.problems import get_problem
from mkb_core.bench.watch import Watch, anonymous_bytes, helper_seconds, innermost
from mkb_core.config import ROOT
from mkb_core.scratch import scratch

OUTPUT_LIMIT = 16 << 20
SHOWN_OUTPUT = 4096
# bytes of a runner's own memory: 24 GiB, on a small machine half of what it has
MEMORY_LIMIT = min(24 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
WATCH_SECONDS = 0.1
START_SECONDS = 180


class VerifierBroken(RuntimeError):
    """A fault of the verifier or its host, not of the submission."""


class ForkServer:
    """The supervisor's end of one fork server."""

    def __init__(self, role: str, dsl: str, device: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the server)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mkb_core.bench.forkserver", str(theirs.fileno()), role, dsl, device],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=launches.environment(role, dsl, device),
            cwd=ROOT,
        )
        theirs.close()
        self.ready = False

    def wait_ready(self) -> None:
        """Until its imports are done; raises VerifierBroken with what it printed."""
        if self.ready:
            return
        readable, _, _ = select.select([self.control], [], [], START_SECONDS)
        message = receive(self.control)[0] if readable else None
        if not message:
            self.log.seek(0)
            tail = self.log.read()[-1500:].decode(errors="replace")
            self.close()
            raise VerifierBroken(f"a verifier process could not start: {tail.strip()}")
        self.ready = True

    def close(self) -> None:
        """End the server; it takes its children along."""
        self.control.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Child:
    """One forked process: what it printed, and how it ended."""

    def __init__(self, server: ForkServer, number: int, message: dict[str, Any], channel: int) -> None:
        self.server, self.number = server, number
        self.pipe, writer = os.pipe()
        os.set_blocking(self.pipe, False)
        self.printed, self.tail = b"", b""
        self.total = 0
        self.code: int | None = None
        self.cause: str | None = None
        self.pid: int | None = None
        report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.watch = Watch(report)
        send(server.control, {"number": number, **message}, (channel, writer, theirs.fileno()))
        theirs.close()
        os.close(writer)

    def drain(self) -> None:
        """Read what it printed; past the limit it is killed."""
        while True:
            try:
                data = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self.total += len(data)
            self.printed = (self.printed + data)[:SHOWN_OUTPUT]
            self.tail = (self.tail + data)[-SHOWN_OUTPUT:]
            if self.total > OUTPUT_LIMIT and self.cause is None:
                self.cause = f"wrote more than {OUTPUT_LIMIT >> 20} MiB to stdout or stderr"
                self.kill()

    def weigh(self) -> None:
        """Kill it where it holds more memory than it may."""
        if self.pid is None or self.cause is not None or self.code is not None:
            return
        if anonymous_bytes(innermost(self.pid)) > MEMORY_LIMIT:
            self.cause = f"used more than {MEMORY_LIMIT >> 30} GiB of memory"
            self.kill()

    def kill(self) -> None:
        """SIGKILL it and everything below it; where the server is gone, that is done."""
        with contextlib.suppress(OSError):
            send(self.server.control, {"kill": self.number})


class Supervision:
    """The processes of the verdicts on one device, one verdict at a time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.servers: dict[str, ForkServer] = {}
        self.number = secrets.randbelow(1000)  # users of boxes are numbered by it: not the same in two verifiers

    def close(self) -> None:
        """End every server."""
        for server in self.servers.values():
            server.close()
        self.servers.clear()

    def judge(self, job: dict[str, Any], source: bytes) -> dict[str, Any]:
        """Facts of the verdict; raises VerifierBroken where the verifier itself fails."""
        checker_server, runner_server = self.server("checker", "none"), self.server("runner", job["dsl"])
        checker_server.wait_ready()
        runner_server.wait_ready()
        with scratch("verdict") as directory:
            Path(directory).chmod(0o711)  # a runner that gets no root of its own works below it as another user
            try:
                verdict = OneVerdict(self, checker_server, runner_server, job, source, Path(directory))
                try:
                    return verdict.run()
                finally:
                    verdict.end_all()
            except OSError as error:
                raise VerifierBroken(f"a process of the verifier is gone: {error}") from error

    def server(self, role: str, dsl: str) -> ForkServer:
        """The warm server of this role and DSL, started where there is none."""
        key = f"{role} {dsl}"
        if key not in self.servers or self.servers[key].process.poll() is not None:
            self.servers[key] = ForkServer(role, dsl, self.device)
        return self.servers[key]


class OneVerdict:
    """The event loop of one verdict: requests of the checker, ends and output of the runners, one deadline."""

    def __init__(
        self,
        supervision: Supervision,
        checker_server: ForkServer,
        runner_server: ForkServer,
        job: dict[str, Any],
        source: bytes,
        directory: Path,
    ) -> None:
        self.supervision, self.runner_server = supervision, runner_server
        self.job, self.source, self.directory = job, source, directory
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.limit = float(job["rules"]["verdict_seconds"])
        self.deadline = time.monotonic() + self.limit
        self.runners: dict[str, Child] = {}
        self.next_look = 0.0
        self.checker = Child(checker_server, self.next_number(), job, theirs.fileno())
        theirs.close()

    def next_number(self) -> int:
        """A number that no other child of these servers has."""
        self.supervision.number += 1
        return self.supervision.number

    def run(self) -> dict[str, Any]:
        """Serve the checker until it gives its verdict."""
        while True:
            self.poll(self.deadline)
            if time.monotonic() > self.deadline:
                return {"status": "timeout", "message": f"the verdict took longer than {self.limit:g} s; killed"}
            if not select.select([self.channel], [], [], 0)[0]:
                continue
            message, fds = receive(self.channel)
            if message is None:
                self.checker.drain()
                tail = self.checker.tail[-1500:].decode(errors="replace")
                raise VerifierBroken(f"the checker ended without a verdict: {tail.strip()}")
            if "verdict" in message:
                return {**self.amended(message["verdict"]), "output": self.shown()}
            if "start" in message:
                self.start(message["start"], fds[0])
            elif "threads" in message:
                pid = self.runners[message["threads"]].pid
                send(self.channel, {"seconds": helper_seconds(innermost(pid)) if pid else 0.0})
            else:
                send(self.channel, self.end(message["end"], float(message["patience"])))

    def amended(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The checker's facts with what only the supervisor saw: walls that do not stand, and refused calls."""
        watches = [child.watch for child in self.runners.values()]
        missing = sorted({wall for watch in watches for wall in watch.unenforced or ()})
        facts = {**facts, "unenforced": missing}
        broken = next(filter(None, (watch.broken_rule() for watch in watches)), "")
        if self.job.get("strict") and missing:
            text = f"--strict: this host does not enforce {', '.join(missing)}"
            return {**facts, "status": "infra", "message": text}
        return {**facts, "status": "rule", "message": broken} if broken else facts

    def poll(self, until: float) -> None:
        """Wait for anything to happen; keep output drained and ends noted."""
        children = [self.checker, *self.runners.values()]
        controls = {c.server.control for c in children}
        sources: list[socket.socket | int] = [
            self.channel,
            *controls,
            *(c.pipe for c in children if c.code is None),
            *(source for c in children for source in c.watch.sources()),
        ]
        ready, _, _ = select.select(sources, [], [], max(0.0, min(until - time.monotonic(), WATCH_SECONDS)))
        for child in children:
            if child.pipe in ready:
                child.drain()
            child.watch.handle(ready)
        if time.monotonic() > self.next_look:
            self.next_look = time.monotonic() + WATCH_SECONDS
            for child in self.runners.values():
                child.weigh()
        for control in controls.intersection(ready):
            message, _ = receive(control)
            if message is None:
                raise VerifierBroken("a fork server died")
            for child in children:
                if child.number == message.get("started"):
                    child.pid = message["pid"]
                if child.number == message.get("ended"):
                    child.drain()
                    child.code = message["code"]

    def start(self, part: str, channel: int) -> None:
        """Fork the runner of one part, with a directory of its own."""
        home = Path(tempfile.mkdtemp(dir=self.directory))  # a name that tells no part from another
        reference = get_problem(self.job["problem"]).reference_path
        (home / "source").write_bytes(reference.read_bytes() if part == "baseline" else self.source)
        message = {"directory": str(home)}
        self.runners[part] = Child(self.runner_server, self.next_number(), message, channel)
        os.close(channel)

    def end(self, part: str, patience: float = 0.0) -> dict[str, Any]:
        """Kill the runner of one part, after a while in which it may end itself, and wait until it is gone."""
        child = self.runners[part]
        self.await_end(child, patience)
        if child.code is None:
            child.kill()
        self.await_end(child, 20)
        if child.code is None:  # the server does not answer: the next verdict gets a new one
            self.runner_server.process.kill()
        return {"code": child.code, "cause": child.cause, "printed": child.tail.decode(errors="replace")}

    def await_end(self, child: Child, seconds: float) -> None:
        """Go on watching until a child has ended, or for so long."""
        until = time.monotonic() + seconds
        while child.code is None and time.monotonic() < until:
            self.poll(until)

    def end_all(self) -> None:
        """Kill what is still alive; the servers stay."""
        try:
            for part in self.runners:
                self.end(part)
            if self.checker.code is None:
                self.checker.kill()
        finally:
            self.channel.close()
            for child in (self.checker, *self.runners.values()):
                os.close(child.pipe)
                child.watch.close()

    def shown(self) -> str:
        """What the submission printed, for display."""
        kernel = self.runners.get("kernel")
        return kernel.printed.decode(errors="replace") if kernel else ""
