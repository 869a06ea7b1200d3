"""The files of a runner's box: its own root with the system and this Python, read-only, and room to write."""

import ctypes
import os
import struct
import sys
from pathlib import Path

from mkb_core.config import ROOT
from mkb_core.shim import cache_directory

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 2, -100, 0x8000, 0x1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
MOUNT_SETATTR = 442
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/etc", "/sys")
DEVICES = ("null", "zero", "full", "random", "urandom", "dxg")
VARIABLES = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKB_CUTE_RUNTIME", "CUTE_DSL_LIBS")
WORK = Path("/metakernelbench")  # of no machine's own
ROOM = "size=2g,nr_inodes=65536,mode=755"
libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def visible(python_path: list[str]) -> list[Path]:
    """Directories besides the system's: this Python, its packages, the libraries that the environment names.

    Of this repository only the package: not the problems, their solutions, the data or anybody's runs.
    """
    named = [part for v in VARIABLES for part in os.environ.get(v, "").replace(" ", ":").split(":") if part]
    found = [
        Path(sys.prefix),
        Path(sys.base_prefix),
        *map(Path, python_path),
        *map(Path, named),
        cache_directory(),
    ]
    paths: list[Path] = []
    for path in (q for p in found for q in (p.absolute(), p.resolve())):
        path = path.parent if path.is_file() else path
        if ROOT.is_relative_to(path):
            path = ROOT / "mkb_core"
        if path.is_dir() and not any(path.is_relative_to(p) for p in (*map(Path, SYSTEM), *paths)):
            paths.append(path)
    return paths


def new_root(home: Path, uid: int, fresh_proc: bool) -> Path:
    """Make the root below `home` and go into it; returns the writable directory. Raises OSError."""
    root = home / "root"
    root.mkdir()
    _mount(None, Path("/"), None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, ROOM)
    for path in [*map(Path, SYSTEM), *visible(sys.path)]:
        _show(path, root)
    _devices(root)
    proc = root / "proc"
    proc.mkdir()
    if fresh_proc:
        _mount("proc", proc, "proc", MS_NOSUID | MS_NODEV)
    else:
        _mount("/proc", proc, None, MS_BIND | MS_REC)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o1777)
    work = root / WORK.relative_to("/")
    work.mkdir()
    os.chown(work, uid, -1)
    os.chdir(root)
    if libc.syscall(PIVOT_ROOT, b".", b".") or libc.umount2(b".", MNT_DETACH):
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    return WORK


def _devices(root: Path) -> None:
    (root / "dev").mkdir()
    wanted = [Path("/dev", name) for name in DEVICES] + sorted(Path("/dev").glob("nvidia*"))
    for path in wanted:
        if path.exists():
            target = root / path.relative_to("/")
            target.mkdir() if path.is_dir() else target.touch()
            _mount(str(path), target, None, MS_BIND | MS_REC)


def _show(path: Path, root: Path) -> None:
    """The same path in the new root, read-only; a link of the system's stays a link."""
    target = root / path.relative_to("/")
    if path.is_symlink():
        target.symlink_to(path.readlink())
    elif path.exists() and not target.exists():
        target.mkdir(parents=True)
        _mount(str(path), target, None, MS_BIND | MS_REC)
        attributes = struct.pack("QQQQ", READ_ONLY | MS_NOSUID, 0, 0, 0)
        if libc.syscall(MOUNT_SETATTR, AT_FDCWD, str(target).encode(), AT_RECURSIVE, attributes, len(attributes)):
            raise OSError(ctypes.get_errno(), f"cannot make {path} read-only")


def _mount(source: str | None, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    values = (source, str(target), kind)
    arguments = [v.encode() if v is not None else None for v in values]
    if libc.mount(*arguments, flags, data.encode() if data else None):
        raise OSError(ctypes.get_errno(), f"mount {target}")
