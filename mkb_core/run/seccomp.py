"""The sandbox's system call filter as the classic BPF program that `bwrap --seccomp` takes."""

from __future__ import annotations

import errno
import platform
import struct

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, JUMP_EQ, JUMP_GE, RETURN = 0x20, 0x15, 0x35, 0x06
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


def program(machine: str | None = None) -> bytes:
    """The filter for `machine` (default: this one)."""
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
    for calls, error in ((DENIED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in calls.values():
            code += [(JUMP_EQ, 0, 1, numbers[column]), (RETURN, 0, 0, ERRNO | error)]
    for number in SOCKET_CALLS[machine]:
        code += [(JUMP_EQ, 0, 2 * len(FAMILIES) + 2, number), (LOAD, 0, 0, OFFSET_ARG0)]
        for family in FAMILIES.values():
            code += [(JUMP_EQ, 0, 1, family), (RETURN, 0, 0, ALLOW)]
        code.append((RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT))
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
