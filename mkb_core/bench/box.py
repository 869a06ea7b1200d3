"""The box around a runner: namespaces, its own root, another user, limits, Landlock, a system call filter.

Entered by the forked child before it reads a submission. What the host does not allow is left out and reported:
the supervisor writes it into the verdict, or refuses to go on where it was told to be strict.
"""

import contextlib
import ctypes
import os
import resource
import socket
import struct
from pathlib import Path
from typing import NoReturn

from mkb_core import seccomp
from mkb_core.bench import boxfiles
from mkb_core.bench.forkserver import send

WALLS = ("uid", "mount", "pid", "net", "ipc", "files", "limits", "landlock", "system-calls")
NAMESPACES = {"mount": 0x20000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000, "pid": 0x20000000}
NEW_USER = 0x10000000
FIRST_UID, UIDS = 64000, 1000
LIMITS = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 1 << 30, "RLIMIT_NOFILE": 1024, "RLIMIT_NPROC": 2048}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 38, 22
CAPSET, SECCOMP = {"x86_64": (126, 317), "aarch64": (91, 277)}[os.uname().machine]
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
WRITE_FILE, WRITES = 0x2, 0x7FF2  # file rights that change something, by the ABI's first three versions
WRITABLE = ("/tmp", "/dev/shm", "/proc")  # CUDA opens an entry of its own in /proc for writing
libc = ctypes.CDLL(None, use_errno=True)


def enter(home: Path, number: int, report: socket.socket) -> Path:
    """Go into the box; returns the one directory that is writable. `report` gets the walls that stand.

    The process that calls waits outside and ends as the one inside does.
    """
    walls = dict.fromkeys(WALLS, False)
    root, user = os.geteuid() == 0, (os.geteuid(), os.getegid())
    if not root and libc.unshare(NEW_USER) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user[0]} {user[0]} 1")
        Path("/proc/self/gid_map").write_text(f"{user[1]} {user[1]} 1")
    for name, flag in NAMESPACES.items():
        walls[name] = libc.unshare(flag) == 0
    if walls["pid"]:
        become_second_process()
    uid = FIRST_UID + number % UIDS if root else user[0]
    inside = home
    if walls["mount"]:
        with contextlib.suppress(OSError):
            inside = boxfiles.new_root(home, uid, fresh_proc=walls["pid"])
            walls["files"] = True
    if root and not walls["files"]:
        os.chown(home, uid, -1)
    walls["limits"] = limit()
    if root:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        walls["uid"] = True
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.syscall(CAPSET, struct.pack("II", 0x20080522, 0), bytes(24))
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or CUDA could not read its own /proc entries as another user
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    walls["landlock"] = walls["files"] and landlock([inside, *map(Path, WRITABLE)], [Path("/dev")])
    listener = filter_calls()
    walls["system-calls"] = listener is not None
    send(report, {"unenforced": [w for w in WALLS if not walls[w]]}, (listener,) if listener else ())
    if listener:
        os.close(listener)
    report.close()
    os.chdir(inside)
    return inside


def become_second_process() -> None:
    """Fork an init for the new process namespace and, below it, the process that goes on.

    A namespace's first process ignores signals it does not handle, so that a crash in it would look like another.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        end_like(pid, reader)
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    os.close(reader)
    child = os.fork()
    if child == 0:
        os.close(writer)
        return
    close_all_but(writer)
    while True:
        pid, status = os.wait()
        if pid == child:
            os.write(writer, struct.pack("i", status))
            os._exit(0)


def end_like(pid: int, reader: int) -> NoReturn:
    """Wait outside; end with the exit code or the signal of the process inside."""
    close_all_but(reader)
    os.waitpid(pid, 0)
    data = os.read(reader, 4)
    status = struct.unpack("i", data)[0] if len(data) == 4 else 9
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.WIFSIGNALED(status):
        import signal

        with contextlib.suppress(OSError, ValueError):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def close_all_but(fd: int) -> None:
    """Close what was inherited, except what is printed to and this descriptor."""
    os.closerange(3, fd)
    os.closerange(fd + 1, LIMITS["RLIMIT_NOFILE"])


def limit() -> bool:
    """Resource limits; memory is watched by the supervisor instead, as CUDA reserves far more addresses."""
    for name, value in LIMITS.items():
        _, hard = resource.getrlimit(getattr(resource, name))
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(getattr(resource, name), (value, value))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    return True


def landlock(writable: list[Path], devices: list[Path]) -> bool:
    """Nothing is written but below these directories; no TCP, no signal or abstract socket to the outside."""
    abi = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if abi < 3:
        return False
    attributes = struct.pack("QQQ", WRITES, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    ruleset = libc.syscall(LANDLOCK_CREATE, attributes, 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    if ruleset < 0:
        return False
    for paths, rights in ((writable, WRITES), (devices, WRITE_FILE)):
        for path in paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("<Qi", rights, fd), 0)
            os.close(fd)
    done = libc.syscall(LANDLOCK_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return bool(done)


def filter_calls() -> int | None:
    """Install the filter; the descriptor on which refused calls are told, or None where the kernel has none."""
    code = ctypes.create_string_buffer(seccomp.program(watched=True))
    program = struct.pack("HxxxxxxQ", (len(code) - 1) // 8, ctypes.addressof(code))
    listener = libc.syscall(SECCOMP, 1, 8, program)  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER
    return int(listener) if listener >= 0 else None
