"""Memory, CPU and process limits of one sandbox by cgroup v2 or v1, where this host lets us make one."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "mkb"
CPU_PERIOD_US = 100_000
STATS = (
    "memory.peak",
    "memory.events",
    "memory.max_usage_in_bytes",
    "memory.failcnt",
    "pids.events",
    "pids.peak",
    "cpu.stat",
)

_counter = itertools.count()


class Cgroup:
    """The directories made for a sandbox and the limits that took hold."""

    def __init__(self, root: Path = ROOT) -> None:
        """A name that no other sandbox of this host has; `create` makes the directories."""
        self.root = root
        self.name = f"{PREFIX}-{os.getpid()}-{next(_counter)}"
        self.dirs: list[Path] = []
        self.enforced: dict[str, str] = {}

    @classmethod
    def create(cls, *, memory_mb: int | None, cpus: int | None, pids: int | None, root: Path = ROOT) -> Cgroup:
        """Make the cgroup; what this host does not allow is missing from `enforced`."""
        group = cls(root)
        sweep(root)
        with contextlib.suppress(OSError):
            v2 = root / "cgroup.controllers"
            if v2.exists() and "memory" in v2.read_text().split():
                group._create_v2(memory_mb, cpus, pids)
            else:
                group._create_v1(memory_mb, cpus, pids)
        return group

    def _create_v2(self, memory_mb: int | None, cpus: int | None, pids: int | None) -> None:
        for controller in ("memory", "cpu", "pids"):
            _write(self.root / "cgroup.subtree_control", f"+{controller}")
        path = self._mkdir(self.root)
        if memory_mb and _write(path / "memory.max", str(memory_mb << 20)):
            _write(path / "memory.swap.max", "0")
            self.enforced["memory"] = f"cgroup v2 memory.max {memory_mb} MB"
        if cpus and _write(path / "cpu.max", f"{cpus * CPU_PERIOD_US} {CPU_PERIOD_US}"):
            self.enforced["cpu"] = f"cgroup v2 cpu.max {cpus} cores"
        if pids and _write(path / "pids.max", str(pids)):
            self.enforced["pids"] = f"cgroup v2 pids.max {pids}"

    def _create_v1(self, memory_mb: int | None, cpus: int | None, pids: int | None) -> None:
        if memory_mb and (self.root / "memory").is_dir():
            path = self._mkdir(self.root / "memory")
            if _write(path / "memory.limit_in_bytes", str(memory_mb << 20)):
                _write(path / "memory.memsw.limit_in_bytes", str(memory_mb << 20))  # swap counts as memory
                self.enforced["memory"] = f"cgroup v1 memory.limit_in_bytes {memory_mb} MB"
        if cpus and (self.root / "cpu").is_dir():
            path = self._mkdir(self.root / "cpu")
            _write(path / "cpu.cfs_period_us", str(CPU_PERIOD_US))
            if _write(path / "cpu.cfs_quota_us", str(cpus * CPU_PERIOD_US)):
                self.enforced["cpu"] = f"cgroup v1 cpu.cfs_quota_us {cpus} cores"
        if pids and (self.root / "pids").is_dir():
            path = self._mkdir(self.root / "pids")
            if _write(path / "pids.max", str(pids)):
                self.enforced["pids"] = f"cgroup v1 pids.max {pids}"

    def _mkdir(self, parent: Path) -> Path:
        path = parent / self.name
        path.mkdir()
        self.dirs.append(path)
        return path

    def join_argv(self) -> list[str]:
        """A command prefix that enters the cgroups and then becomes the rest of the command."""
        if not self.dirs:
            return []
        joins = "".join(f"echo $$ > {d}/cgroup.procs && " for d in self.dirs)
        return ["/bin/sh", "-c", joins + 'exec "$@"', "sh"]

    def stats(self) -> dict[str, str]:
        """The kernel's own account of peaks and refusals."""
        paths = [d / name for d in self.dirs for name in STATS]
        return {p.name: p.read_text().strip() for p in paths if p.exists()}

    def destroy(self, timeout: float = 5) -> bool:
        """Kill what is left inside and remove the directories."""
        deadline = time.monotonic() + timeout
        while self.dirs and time.monotonic() < deadline:
            self.dirs = [d for d in self.dirs if not _remove(d)]
            if self.dirs:
                time.sleep(0.005)
        return not self.dirs


def sweep(root: Path = ROOT) -> None:
    """Remove the cgroups of harness processes that are gone (they died before they could)."""
    for path in [*root.glob(f"{PREFIX}-*-*"), *root.glob(f"*/{PREFIX}-*-*")]:
        if not Path("/proc", path.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                path.rmdir()


def _remove(path: Path) -> bool:
    try:
        _write(path / "cgroup.kill", "1")
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: Path, value: str) -> bool:
    # never create: on something that only looks like a cgroup a plain file would be "enforced"
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, value.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
