"""Files in and out of a sandbox: bytes cross pipes, and the host never opens a path that the agent made."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from mkb_core.run.execserver import Completed

UPLOAD_FILE = 'd="$1"; [ -d "$d" ] && d="$d/$2"; mkdir -p "$(dirname "$d")" && cat > "$d" && chmod "$3" "$d"'
UPLOAD_DIR = 'mkdir -p "$1" && tar -xf - --no-same-owner -C "$1"'
# head, because a sparse file costs the agent nothing and us its full length
DOWNLOAD_FILE = (
    '[ -f "$1" ] && [ ! -L "$1" ] || { echo "not a regular file" >&2; exit 1; }; exec head -c "$2" -- "$1"'
)
DOWNLOAD_DIR = '[ -d "$1" ] && [ ! -L "$1" ] && cd "$1" && tar -cf - . | head -c "$2"'


class Transfer(ABC):
    """The file methods of a Harbor environment, on top of a way to run commands."""

    _max_download: int

    @abstractmethod
    async def _run(self, argv: list[str], *, limit: int, stdin: bytes | None = None) -> Completed: ...

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy one host file in."""
        source = Path(source_path)
        mode = "755" if os.access(source, os.X_OK) else "644"
        data = await asyncio.to_thread(source.read_bytes)
        await self._shell(UPLOAD_FILE, str(target_path), source.name, mode, stdin=data)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a host directory in."""
        data = await asyncio.to_thread(_pack, Path(source_dir))
        await self._shell(UPLOAD_DIR, str(target_dir), stdin=data)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy one regular file out; links, devices, pipes, directories and giants are refused."""
        data = await self._shell(DOWNLOAD_FILE, str(source_path), str(self._max_download + 1))
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the regular files of a directory out, never over one that the host has already."""
        await self._fetch_tree(source_dir, target_dir, lambda name: True)

    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        """The same without the files that tar's `--exclude` patterns would match."""
        await self._fetch_tree(source_dir, target_dir, lambda name: not _excluded(name, exclude))

    async def download_dir_filtered(
        self,
        *,
        source_dir: str,
        target_dir: Path | str,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        """The same for the names that match `include` and not `exclude`, and for all in `protect`."""

        def wanted(name: str) -> bool:
            chosen = not include or any(fnmatch(name, pattern) for pattern in include)
            dropped = any(fnmatch(name, pattern) for pattern in exclude or ())
            return name in (protect or ()) or (chosen and not dropped)

        await self._fetch_tree(source_dir, target_dir, wanted)

    async def _fetch_tree(self, source_dir: str, target_dir: Path | str, wanted: Callable[[str], bool]) -> None:
        data = await self._shell(DOWNLOAD_DIR, str(source_dir), str(self._max_download + 1))
        await asyncio.to_thread(_unpack, data, Path(target_dir), wanted)

    async def _shell(self, script: str, *args: str, stdin: bytes | None = None) -> bytes:
        argv = ["/bin/bash", "-c", f"set -o pipefail; {script}", "sh", *args]
        done = await self._run(argv, limit=self._max_download + 1, stdin=stdin)
        if len(done.out) > self._max_download:
            raise RuntimeError(f"{args[0]} is larger than the {self._max_download >> 20} MB that may leave")
        if done.rc:
            message = done.err.decode(errors="replace").strip()[:500]
            raise RuntimeError(f"{args[0]}: {message or 'refused'} (exit code {done.rc})")
        return done.out


def _excluded(name: str, patterns: Sequence[str]) -> bool:
    parts = PurePosixPath(name).parts
    tails = ["/".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]
    return any(fnmatch(tail, pattern) for tail in tails for pattern in patterns)


def _pack(source: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=".")
    return buffer.getvalue()


def _unpack(data: bytes, target: Path, wanted: Callable[[str], bool]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if not member.isreg() or name.is_absolute() or ".." in name.parts or not wanted(str(name)):
                continue
            place = target / name
            # what the host wrote stays (a forged trajectory.json must not replace the real one)
            if os.path.lexists(place):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            if content is not None:
                with content, place.open("xb") as file:
                    shutil.copyfileobj(content, file)
