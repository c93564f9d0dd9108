"""The system calls that a program in a sandbox is refused, as a seccomp filter.

The filter is compiled by libseccomp, which every Debian has: numbers of calls and conventions of machines are its.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import socket
from functools import cache

from rljob_core.ports.sandbox import SandboxUnavailable

_ALLOW, _REFUSE = (
    0x7FFF0000,
    0x00050000,
)  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO with the error's number in the low half
_EPERM, _ENOSYS = 1, 38
_EQUAL, _AT_LEAST, _MASKED_EQUAL = 4, 5, 7
_UNKNOWN = -1  # __NR_SCMP_ERROR: this libseccomp, or this machine, has no such call
_NAMESPACES = (0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

REFUSED = (
    # other file systems, and namespaces in which more would be allowed
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "setns", "unshare", "open_by_handle_at", "name_to_handle_at",
    # other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd",
    # parts of the kernel in which most holes were found
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "add_key", "request_key", "keyctl", "personality",
    # memory that no limit counts
    "memfd_create", "memfd_secret", "shmget", "shmat", "msgget", "semget",
    # the machine
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff",
    "acct", "quotactl", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "syslog",
)  # fmt: skip
_FIRST_OTHER_FAMILY = socket.AF_INET6 + 1


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@cache
def refusals() -> bytes:
    """The filter, as `bwrap --seccomp` reads it.

    Raises:
        SandboxUnavailable: there is no libseccomp.
    """
    name = ctypes.util.find_library("seccomp") or "libseccomp.so.2"
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        raise SandboxUnavailable(f"libseccomp cannot be loaded ({error}): install libseccomp2") from error
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))
    if not context:
        raise SandboxUnavailable("libseccomp makes no filter for this machine")

    def refuse(call: str, *compared: _Compare, error: int = _EPERM) -> None:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number == _UNKNOWN:
            return
        array = (_Compare * len(compared))(*compared)
        failed = library.seccomp_rule_add_array(
            context,
            ctypes.c_uint32(_REFUSE | error),
            ctypes.c_int(number),
            ctypes.c_uint(len(compared)),
            array,
        )
        if failed:
            raise SandboxUnavailable(f"libseccomp refuses a rule about {call}: {os.strerror(-failed)}")

    try:
        for call in REFUSED:
            refuse(call)
        for flag in _NAMESPACES:
            refuse("clone", _Compare(0, _MASKED_EQUAL, flag, flag))
        # Its flags lie in memory, where no filter sees them; without it, libraries use `clone`.
        refuse("clone3", error=_ENOSYS)
        # Of sockets those of the sandbox's own network alone; vsock, for one, belongs to the whole machine.
        refuse("socket", _Compare(0, _AT_LEAST, _FIRST_OTHER_FAMILY, 0))
        for family in range(socket.AF_INET + 1, socket.AF_INET6):
            refuse("socket", _Compare(0, _EQUAL, family, 0))
        file = os.memfd_create("seccomp")
        try:
            if failed := library.seccomp_export_bpf(context, file):
                raise SandboxUnavailable(f"libseccomp writes no filter: {os.strerror(-failed)}")
            os.lseek(file, 0, os.SEEK_SET)
            return os.read(file, 1 << 20)
        finally:
            os.close(file)
    finally:
        library.seccomp_release(context)
