"""System call filters as classic BPF programs: for the agents' sandbox, and for the runner of a verdict."""

from __future__ import annotations

import errno
import platform
import struct

ALLOW, ERRNO, NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
LOAD, JUMP_EQ, JUMP_GE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CLONE_THREAD = 0x10000
OFFSET_NR, OFFSET_ARCH, OFFSET_ARG0 = 0, 4, 16

# Others are refused: AF_VSOCK is not confined by a network namespace and reaches a virtual machine's host.
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SOCKET_CALLS = {"x86_64": (41, 53), "aarch64": (198, 199)}  # socket, socketpair
X32_BIT = 0x40000000

# name: numbers on x86_64 and aarch64
DENIED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "pivot_root": (155, 41),
    "acct": (163, 89),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
# "not there" instead of "not allowed": libraries then fall back to epoll. Denied because
# IORING_OP_SOCKET makes a socket that the rule on socket() does not see.
ABSENT = {"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)}
# a runner starts threads and nothing else: what else it asks for is refused and told to the supervisor
WATCHED: dict[str, tuple[int, int]] = {
    "fork": (57, -1),
    "vfork": (58, -1),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
}
CLONE, CLONE3 = (56, 220), (435, 435)


def name_of(number: int, machine: str | None = None) -> str:
    """The name of a watched system call."""
    column = 0 if (machine or platform.machine()) == "x86_64" else 1
    numbers = {n[column]: name for name, n in WATCHED.items()} | {CLONE[column]: "clone"}
    sockets = SOCKET_CALLS[machine or platform.machine()]
    return numbers.get(number) or ("socket" if number in sockets else f"system call {number}")


def program(machine: str | None = None, watched: bool = False) -> bytes:
    """The filter for `machine` (default: this one).

    With `watched`, calls that start processes, look into others or open sockets that are not local wait for the
    answer of whoever listens (seccomp user notification, Linux 5.0).
    """
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCH:
        raise RuntimeError(f"no system call filter for {machine}: the sandbox runs on x86_64 and aarch64")
    column = 0 if machine == "x86_64" else 1
    code = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JUMP_EQ, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        (LOAD, 0, 0, OFFSET_NR),
    ]
    if machine == "x86_64":
        code += [(JUMP_GE, 0, 1, X32_BIT), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    if watched:
        for numbers in WATCHED.values():
            if numbers[column] >= 0:
                code += [(JUMP_EQ, 0, 1, numbers[column]), (RETURN, 0, 0, NOTIFY)]
        # flags of clone3 lie in memory, where a filter cannot look: the C library then falls back to clone
        code += [(JUMP_EQ, 0, 1, CLONE3[column]), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
        code += [(JUMP_EQ, 0, 4, CLONE[column]), (LOAD, 0, 0, OFFSET_ARG0), (JUMP_SET, 0, 1, CLONE_THREAD)]
        code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    families = {"AF_UNIX": FAMILIES["AF_UNIX"]} if watched else FAMILIES
    refused = NOTIFY if watched else ERRNO | errno.EAFNOSUPPORT
    for calls, error in ((DENIED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in calls.values():
            code += [(JUMP_EQ, 0, 1, numbers[column]), (RETURN, 0, 0, ERRNO | error)]
    for number in SOCKET_CALLS[machine]:
        code += [(JUMP_EQ, 0, 2 * len(families) + 2, number), (LOAD, 0, 0, OFFSET_ARG0)]
        for family in families.values():
            code += [(JUMP_EQ, 0, 1, family), (RETURN, 0, 0, ALLOW)]
        code.append((RETURN, 0, 0, refused))
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
