"""Which sandbox a trial gets on this machine."""

from __future__ import annotations

import shutil
import subprocess

from harbor.models.environment_type import EnvironmentType

from mkb_core.run.bwrap import INSTALL, problem

OURS = {
    "docker": "mkb_core.run.docker:NoNetworkDockerEnvironment",
    "bwrap": "mkb_core.run.sandbox:BubblewrapEnvironment",
}


def check(name: str = "auto") -> None:
    """Raise RuntimeError, saying what to install or allow, where this sandbox cannot start here."""
    if choose(name) == OURS["bwrap"] and (fault := problem()):
        raise RuntimeError(fault)
    if choose(name) == OURS["docker"] and not docker_answers():
        raise RuntimeError("no Docker engine answers `docker info`: start it, or use the environment bwrap")


def choose(name: str = "auto") -> str:
    """Harbor's import path (with a colon) or environment type for `name`.

    `docker` and `bwrap` are this benchmark's own classes; any other name has to be one of Harbor's types.
    """
    if name == "auto":
        name = _installed()
    if name in OURS:
        return OURS[name]
    if ":" in name or name in {str(kind.value) for kind in EnvironmentType}:
        return name
    raise ValueError(f"unknown sandbox {name!r}: auto, docker, bwrap or a Harbor environment type")


def _installed() -> str:
    """Bubblewrap first: it needs no image, and it is what the tests run in."""
    if shutil.which("bwrap"):
        return "bwrap"
    if docker_answers():
        return "docker"
    raise RuntimeError(f"No bubblewrap and no Docker engine: run `{INSTALL}` (as root) or start Docker")


def docker_answers() -> bool:
    """Whether a Docker engine is there and answers within 5 seconds."""
    try:
        command = ["docker", "info"]
        return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
