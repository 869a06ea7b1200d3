"""Shared libraries built once from a C file of the package with the system's compiler."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


def cache_directory() -> Path:
    """Where built libraries are kept: $MKB_CACHE, else ~/.cache/metakernelbench, else a private directory."""
    wanted = Path(os.environ.get("MKB_CACHE") or Path.home() / ".cache" / "metakernelbench")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError:
        return Path(tempfile.mkdtemp(prefix="metakernelbench-"))


@cache
def shared_library(source: Path, name: str | None = None, options: tuple[str, ...] = ()) -> Path:
    """Path of the library built from `source`, under a folder named by the digest of source and options.

    Two processes may build at once: each renames its own complete file into place. Raises RuntimeError naming the
    install line where there is no compiler, or with the compiler's words where it fails.
    """
    digest = hashlib.sha256(source.read_bytes() + repr(options).encode()).hexdigest()[:16]
    target = cache_directory() / digest / (name or f"lib{source.stem}.so")
    if target.exists():
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError(f"no C compiler to build {source.name}: run `apt-get install gcc libc6-dev`")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(unfinished), str(source), "-ldl", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{compiler} could not build {source.name}: {done.stderr.strip()}")
    unfinished.rename(target)
    return target
