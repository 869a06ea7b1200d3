"""The bubblewrap command line: an allow-list of read-only paths, bounded tmpfs, every namespace unshared."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MiB = 1 << 20
INSTALL = "apt-get install bubblewrap tmux"
HOST_ETC = (
    "alternatives",
    "bash.bashrc",
    "debian_version",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "terminfo",
)
TMPFS_MB = {
    "/app": 1024,
    "/dev/shm": 256,
    "/harbor": 64,
    "/logs": 256,
    "/root": 512,  # HOME, so the compilers' caches too
    "/run": 16,
    "/solution": 64,
    "/tests": 64,
    "/tmp": 2048,
    "/var/tmp": 256,
}
LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
UIDS = range(20_000, 60_000)  # neither people's nor systemd's
ISOLATION = ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL")
INIT_PATH = "/etc/sandbox_init.py"
HOST_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
NO_USERNS = """bubblewrap cannot make a user namespace here: {error}
  Ubuntu 24.04: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (or an AppArmor profile for bwrap)
  Debian 10 or hardened kernels: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000
  in a container: run it with --security-opt seccomp=unconfined --security-opt systempaths=unconfined
  bubblewrap before 0.8 lacks --disable-userns: install a newer one"""


@dataclass
class Layout:
    """What the sandbox's file system consists of."""

    tmpfs_mb: dict[str, int]
    binds: list[tuple[Path, str]] = field(default_factory=list)  # read-only, always
    files: dict[str, str] = field(default_factory=dict)
    symlinks: list[tuple[str, str]] = field(default_factory=list)
    masked: list[str] = field(default_factory=list)  # directories within binds that stay empty
    dirs: list[str] = field(default_factory=list)


def free_uid() -> int:
    """A host uid without processes: the sandbox of a root harness must not be root on the host."""
    taken = {p.stat().st_uid for p in Path("/proc").glob("[0-9]*") if p.exists()}
    return random.choice([uid for uid in UIDS if uid not in taken])


def scaled(tmpfs_mb: dict[str, int], total_mb: int) -> dict[str, int]:
    """The sizes shrunk to `total_mb` together: full tmpfs must leave memory to run commands in."""
    factor = min(1, total_mb / sum(tmpfs_mb.values())) if total_mb else 1
    return {place: max(1, int(mb * factor)) for place, mb in tmpfs_mb.items()}


def drop_argv(uid: int | None) -> list[str]:
    """Become `uid` for good; started as root, bwrap would keep all capabilities."""
    if uid is None:
        return []
    ids = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return ["setpriv", *ids, "--inh-caps=-all", "--no-new-privs"]


def stage(sources: Sequence[Path], directory: Path | None) -> tuple[list[str], dict[Path, Path]]:
    """A command prefix after which each source is reachable by an unprivileged uid, and where.

    Directories such as /root (0700) keep the dropped uid from what lies below them. In a private mount
    namespace each source, or a parent that is open itself, is bound to `directory`; the host's stays empty.
    """
    if directory is None:
        return [], {source: source for source in sources}
    anchors = {source: source.parent if source.parent.stat().st_mode & 0o001 else source for source in sources}
    places = {anchor: directory / str(n) for n, anchor in enumerate(dict.fromkeys(anchors.values()))}
    script = [f"mount -t tmpfs -o mode=755,size=1m none {shlex.quote(str(directory))}"]
    for anchor, place in places.items():
        at = shlex.quote(str(place))
        make = "mkdir" if anchor.is_dir() else "touch"
        script.append(f"{make} {at}; mount --rbind {shlex.quote(str(anchor))} {at}")
    shell = ["sh", "-ec", "\n".join([*script, 'exec "$@"']), "sh"]
    prefix = ["unshare", "--mount", "--propagation", "private", *shell]
    return prefix, {source: places[a] / source.relative_to(a) for source, a in anchors.items()}


def bwrap_argv(layout: Layout, reachable: dict[Path, Path], seccomp_fd: int) -> tuple[list[str], list[int]]:
    """The command up to `--`, and the descriptors that it reads its made files from."""
    argv = ["bwrap", *ISOLATION, "--uid", "0", "--gid", "0", "--hostname", "sandbox", "--new-session"]
    argv += ["--die-with-parent", "--as-pid-1", "--clearenv", "--seccomp", str(seccomp_fd)]
    argv += ["--ro-bind", "/usr", "/usr"]
    argv += ["--size", str(MiB), "--tmpfs", "/usr/local"]  # this host's own tools
    for name in ("bin", "sbin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    argv += ["--proc", "/proc", "--ro-bind", "/dev/null", "/proc/cmdline", "--dev", "/dev"]
    argv += ["--perms", "0755", "--dir", "/etc"]
    for name in HOST_ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for place, mb in layout.tmpfs_mb.items():
        argv += ["--perms", "1777" if place.endswith(("tmp", "shm")) else "0755"]
        argv += ["--size", str(mb * MiB), "--tmpfs", place]
    for place in layout.dirs:
        argv += ["--dir", place]
    for source, place in layout.binds:
        argv += ["--ro-bind", str(reachable[source]), place]
    for place in layout.masked:
        argv += ["--size", str(MiB), "--tmpfs", place, "--remount-ro", place]
    for target, place in layout.symlinks:
        argv += ["--symlink", target, place]
    fds = []
    for place, text in layout.files.items():
        fds.append(memory_file(text.encode()))
        argv += ["--perms", "0444", "--file", str(fds[-1]), place]
    # last: the interpreter may be below /usr/local; bwrap makes / and /dev without a size limit
    for place in ("/usr/local", "/dev", "/"):
        argv += ["--remount-ro", place]
    return [*argv, "--chdir", "/", "--"], fds


def memory_file(data: bytes) -> int:
    """A descriptor to read `data` from."""
    fd = os.memfd_create("sandbox", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def made_etc(path: str) -> dict[str, str]:
    """The account files of the sandbox; the host's own would name its users."""
    return {
        "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
        "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        # Terminus-2 starts `bash --login`, and Debian's own profile would reset PATH
        "/etc/profile": f"export PATH={path}\n[ -f /etc/bash.bashrc ] && . /etc/bash.bashrc\n",
        INIT_PATH: Path(__file__).with_name("sandbox_init.py").read_text(),
    }


def interpreter_binds(interpreter: Path) -> tuple[list[tuple[Path, str]], list[str]]:
    """The interpreter and its library at their own paths, and the packages installed there to be masked.

    Not the whole prefix: that of a container's Python is /usr/local, with all that the host has there.
    """
    prefix, version = interpreter.parent.parent, interpreter.name
    if prefix == Path("/usr"):
        return [], []
    shared = sorted(prefix.glob("lib/*.so*"))  # libpython, and what conda's interpreters link
    parts = [interpreter, prefix / "lib" / version, prefix / "include" / version, *shared]
    packages = prefix / "lib" / version / "site-packages"
    return [(p, str(p)) for p in parts if p.exists()], [str(packages)] if packages.is_dir() else []


def read_only(mount: Mapping[str, Any]) -> tuple[Path, str]:
    """Source and target of a mount that the sandbox takes."""
    if mount.get("type", "bind") != "bind" or not mount.get("read_only"):
        raise ValueError(f"the sandbox takes read-only bind mounts only, not {dict(mount)}")
    return Path(mount["source"]).resolve(), str(mount["target"])


def places(tmpfs_mb: Mapping[str, int] | None, workdir: str) -> dict[str, int]:
    """The writable directories with their sizes; the working directory is always among them or below one."""
    sizes = {**TMPFS_MB, **(tmpfs_mb or {})}
    if not any(f"{workdir}/".startswith(f"{place}/") for place in sizes):
        sizes[workdir] = TMPFS_MB["/app"]
    return sizes


def problem() -> str | None:
    """None if bubblewrap can isolate here, else what to install or allow."""
    if sys.platform != "linux":
        return "the bubblewrap sandbox needs Linux; use the Docker environment"
    is_root = os.geteuid() == 0
    needed = ["bwrap", "tmux", *(["setpriv", "unshare"] if is_root else [])]
    if missing := [tool for tool in needed if not shutil.which(tool)]:
        return f"not on PATH: {', '.join(missing)}. Run `{INSTALL}` (as root)"
    drop = drop_argv(free_uid() if is_root else None)
    argv = [*drop, "bwrap", *ISOLATION, "--ro-bind", "/", "/", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, env=HOST_ENV)
    return NO_USERNS.format(error=done.stderr.strip()) if done.returncode else None
