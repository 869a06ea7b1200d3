"""Temporary directories that a killed process leaves behind are removed by the next one."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def scratch(kind: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary directory whose name holds this process's id; short, since sockets live in some."""
    sweep()
    return tempfile.TemporaryDirectory(prefix=f"mkb-{os.getpid()}-{kind}-", ignore_cleanup_errors=True)


@cache
def sweep() -> None:
    """Once a process: remove such directories of processes that are gone."""
    for path in Path(tempfile.gettempdir()).glob("mkb-*-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists() and path.stat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
