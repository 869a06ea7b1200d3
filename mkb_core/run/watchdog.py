"""The memory limit for hosts without writable cgroups: measure the sandbox often, kill it when it is over."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

INTERVAL_S = 0.2
PAGE = os.sysconf("SC_PAGE_SIZE")
STAT_PPID, STAT_RSS = 1, 21  # counted from the field after the command's name


class Watchdog(threading.Thread):
    """Calls `kill` whenever the processes below `root_pid` and the tmpfs at `tmpfs` hold too much.

    A thread and not a task: a harness whose event loop is busy importing must not lift the limit. What
    grows faster than the limit's headroom within one interval overshoots; memory of a memfd that no
    process maps is not seen. Hence a second choice after cgroups.
    """

    def __init__(self, root_pid: int, limit_bytes: int, tmpfs: Iterable[str], kill: Callable[[], None]) -> None:
        """`root_pid` itself (bwrap, outside the sandbox) is not counted."""
        super().__init__(name=f"memory-watchdog-{root_pid}", daemon=True)
        self.root_pid, self.limit, self.tmpfs, self.kill = root_pid, limit_bytes, list(tmpfs), kill
        self.peak, self.kills = 0, 0
        self._stopped = threading.Event()

    def run(self) -> None:
        """Measure until stopped."""
        while not self._stopped.wait(INTERVAL_S):
            used = usage(self.root_pid, self.tmpfs, self.limit)
            self.peak = max(self.peak, used)
            if used > self.limit:
                self.kills += 1
                self.kill()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join(5)


def usage(root_pid: int, tmpfs: Iterable[str], limit: int = 0) -> int:
    """Bytes held by the sandbox: exact above `limit`, an upper bound below it."""
    rss = descendants(root_pid)
    files = _tmpfs_bytes(next(iter(rss)), tmpfs) if rss else 0  # the first one is PID 1 of the sandbox
    rough = files + sum(rss.values())
    # resident sets count a shared page once per process; the exact figure walks all page tables
    return rough if rough <= limit else files + sum(_proportional(pid, size) for pid, size in rss.items())


def descendants(root_pid: int) -> dict[int, int]:
    """Resident bytes of each process below `root_pid`, parents first."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            pages = int(fields[STAT_RSS])
            children.setdefault(int(fields[STAT_PPID]), []).append((int(name), pages * PAGE))
    found: dict[int, int] = {}
    queue = list(children.get(root_pid, ()))
    while queue:
        pid, rss = queue.pop(0)
        found[pid] = rss
        queue += children.get(pid, ())
    return found


def _proportional(pid: int, fallback: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return fallback
    kb = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    if "Pss_Anon:" in kb and "Pss_Shmem:" in kb:
        return (kb["Pss_Anon:"] + kb["Pss_Shmem:"]) << 10
    return kb.get("Pss:", fallback >> 10) << 10


def _tmpfs_bytes(pid: int, paths: Iterable[str]) -> int:
    total = 0
    for path in paths:
        try:
            stat = os.statvfs(f"/proc/{pid}/root{path}")
        except OSError:
            continue
        total += (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    return total
