"""The part of the host's Python environment that the agent's sandbox holds: torch and the DSLs, no more."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import cast

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# the extra `dsl` of pyproject.toml; its version bounds are the installer's business
DSL_REQUIREMENTS = (
    "torch",
    "nvidia-cutlass-dsl[cu13]",
    "apache-tvm[cuda]",
    "apache-tvm-ffi",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "numpy",
)
PREFIX = PurePosixPath("/opt/dsl")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE_PACKAGES = PREFIX / "lib" / PYTHON / "site-packages"
CUDA_HEADERS = SITE_PACKAGES / "nvidia/cu13/include"


class ToolchainError(RuntimeError):
    """The DSLs are not installed in a way that can be shown to a sandbox."""


@dataclass(frozen=True)
class Toolchain:
    """Host paths to bind read-only into the sandbox, and what they are."""

    interpreter_prefix: Path
    site_packages: Path
    entries: list[Path]  # below site_packages
    python_path: list[str]  # where they are inside the sandbox
    env: dict[str, str]
    versions: dict[str, str]

    def binds(self) -> list[tuple[Path, str]]:
        """Pairs of a host path and its place in the sandbox."""
        return [(e, str(SITE_PACKAGES / e.relative_to(self.site_packages))) for e in self.entries]

    def files(self) -> dict[str, str]:
        """Files that make /opt/dsl a virtual environment of the interpreter."""
        home = self.interpreter_prefix / "bin"
        return {str(PREFIX / "pyvenv.cfg"): f"home = {home}\ninclude-system-site-packages = false\n"}

    def symlinks(self) -> list[tuple[str, str]]:
        """Pairs of a link's target and its place in the sandbox."""
        python = str(interpreter())
        names = [(python, str(PREFIX / "bin" / name)) for name in ("python", "python3", PYTHON)]
        # TIRx looks for the CUDA headers below both, nvidia's wheels have them below neither's parent
        roots = [PREFIX / "cuda/include", PREFIX / "cuda/targets/x86_64-linux/include"]
        return names + [(str(CUDA_HEADERS), str(root)) for root in roots]


def interpreter() -> Path:
    """The interpreter outside any virtual environment."""
    return Path(sys.base_prefix) / "bin" / PYTHON


@lru_cache(maxsize=4)
def _toolchain(requirements: tuple[str, ...]) -> Toolchain:
    dists = closure(requirements)
    roots = {Path(str(d.locate_file(""))).resolve() for d in dists.values()}
    if len(roots) != 1:
        raise ToolchainError(f"the DSLs are spread over several directories: {sorted(map(str, roots))}")
    site_packages = roots.pop()
    return Toolchain(
        interpreter_prefix=Path(sys.base_prefix),
        site_packages=site_packages,
        entries=_entries(site_packages, dists),
        python_path=[str(SITE_PACKAGES)],
        # sm_90a: without a driver CuTe would compile for its own default, not for the benchmark's GPU
        env={"CUTE_DSL_ARCH": "sm_90a", "CUDA_PATH": str(PREFIX / "cuda")},
        versions={name: d.version for name, d in sorted(dists.items())},
    )


def toolchain(requirements: Sequence[str] = DSL_REQUIREMENTS) -> Toolchain:
    """What of this environment `requirements` need, found from the installed metadata."""
    return _toolchain(tuple(requirements))


def closure(requirements: Sequence[str]) -> dict[str, metadata.Distribution]:
    """The installed distributions reachable from `requirements`, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    queue = [Requirement(r) for r in requirements]
    roots = {canonicalize_name(r.name) for r in queue}
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        try:
            dist = found.get(name) or metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in roots:
                raise ToolchainError(f"{name} is not installed: run `uv sync --extra dsl`") from None
            continue  # left out on purpose by the installer (uv's override-dependencies)
        found[name] = dist
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                queue += _requires(dist, extra)
    return found


def _requires(dist: metadata.Distribution, extra: str) -> list[Requirement]:
    environment: dict[str, str] = {**cast("dict[str, str]", default_environment()), "extra": extra}
    requirements = [Requirement(r) for r in dist.requires or ()]
    return [r for r in requirements if r.marker is None or r.marker.evaluate(environment)]


def _entries(site_packages: Path, dists: dict[str, metadata.Distribution]) -> list[Path]:
    """The shortest paths that hold every file of `dists` and none of any other distribution's."""
    strangers = [d for d in metadata.distributions() if canonicalize_name(d.name) not in dists]
    foreign = {parent for d in strangers for file in _record(d) for parent in _prefixes(file)}
    mine = {file for d in dists.values() for file in _record(d)}
    entries = {next((p for p in _prefixes(file) if p not in foreign), file) for file in mine}
    return sorted(site_packages / e for e in entries if (site_packages / e).exists())


def _record(dist: metadata.Distribution) -> set[str]:
    """The installed files of `dist` without console scripts (`dist.files` would stat each of them)."""
    record = dist.read_text("RECORD")
    if record is None:
        names = [str(f) for f in dist.files or ()]
    else:
        names = [row[0] for row in csv.reader(record.splitlines()) if row]
    return {n for n in names if not n.startswith(("..", "/", "__pycache__"))}


def _prefixes(file: str) -> Iterator[str]:
    """`a`, `a/b` of `a/b/c`."""
    parts = file.split("/")
    return ("/".join(parts[:n]) for n in range(1, len(parts)))
