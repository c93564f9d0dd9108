"""Takes rights from this process and all that it starts, for good: servers do so before they run code of users.

| right | taken by |
|---|---|
| to open sockets other than Unix sockets, unless the job's `network` allows it | seccomp |
| to read memory and variables of other processes of the same user, and to trace them | Landlock, since Linux 5.13 |
| to send them signals | Landlock, since Linux 6.12 |
| of root, beyond those of other users | dropped capabilities |

In a container of its own the code sees no other processes but the kubelet's probe, which has the right to open sockets.
Where there are no containers, all of them keep it from the worker that has started the server. An older kernel goes
without what it cannot do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import platform
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38  # linux/prctl.h, linux/seccomp.h

# linux/filter.h: load a word of the system call, jump if it is equal or at least, return what to do.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_IO_URING_SETUP = 425  # it can open sockets, and seccomp does not see how it is used
_X32 = 0x40000000  # system calls of another ABI, with other numbers

_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread

# System calls of Landlock, the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_SCOPES_SINCE = 6
_SCOPED = 0b11  # abstract Unix sockets, signals; a process of a domain can in any case not trace one outside
_MAKE_BLOCK, _REFER, _REFER_SINCE = 1 << 11, 1 << 13, 2
_PATH_BENEATH = 1

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h


@dataclass(frozen=True, slots=True)
class _Machine:
    """An architecture's number in `linux/audit.h`, and the number of its system call `socket`."""

    audit: int
    socket: int


_MACHINES = {"x86_64": _Machine(0xC000003E, 41), "aarch64": _Machine(0xC00000B7, 198)}


def confine(*, network: bool) -> None:
    """Take the rights from this thread, those that it starts, and their children; nothing on other systems than Linux.

    Args:
        network: whether sockets of all kinds may be opened.

    Raises:
        OSError: the kernel cannot refuse sockets.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.capset(_CAPABILITIES, bytes(24)), "capset")
    leave_others_alone()
    if not network:
        _refuse_sockets(libc)


def leave_others_alone() -> None:
    """Take from this process, and all that it starts, the rights to signal and to trace others, its parents included.

    A confined server takes this from each of its processes, too: confinement alone holds all of them together. Those
    outside can signal inwards.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _leave_other_processes_alone(libc)


def _leave_other_processes_alone(libc: ctypes.CDLL, *, most: int = _SCOPES_SINCE) -> None:
    """Enter a domain of Landlock; `most`: the version of its interface that is used at most."""
    version = min(most, libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION))
    if version < 1:
        log.info("this kernel has no Landlock: only a container keeps them from other processes")
        return
    # Without scopes, a domain has to take some right to files: to make block devices, which only root has. By itself it
    # also takes that to move a file to another folder, which is given back where the kernel can.
    files = _MAKE_BLOCK | (_REFER if version >= _REFER_SINCE else 0)
    attributes = struct.pack("=QQQ", 0, 0, _SCOPED) if version >= _SCOPES_SINCE else struct.pack("=Q", files)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    _check(ruleset, "landlock_create_ruleset")
    try:
        if _REFER_SINCE <= version < _SCOPES_SINCE:
            _allow_everywhere(libc, ruleset, files)
        _check(libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow_everywhere(libc: ctypes.CDLL, ruleset: int, files: int) -> None:
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        rule = libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", files, root), 0)
        _check(rule, "landlock_add_rule")
    finally:
        os.close(root)


def _refuse_sockets(libc: ctypes.CDLL) -> None:
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(
            errno.ENOSYS, f"cannot refuse sockets on {platform.machine()}: allow the network (network: true)"
        )
    # Jumps are relative: (code, if true, if false, value).
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 0, 7, machine.audit),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 5, 0, _X32),
        (_IF_EQUAL, 4, 0, _IO_URING_SETUP),
        (_IF_EQUAL, 0, 2, machine.socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_EQUAL, 0, 1, int(socket.AF_UNIX)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))

    class _Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    filtering = _Program(len(program), ctypes.addressof(instructions))
    done = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filtering), 0, 0)
    _check(done, "prctl(PR_SET_SECCOMP)")


def enter_own_loopback() -> None:
    """Leave the network of this process, which has one thread only, for one of its own that has nothing but a loopback.

    Programs that speak HTTP to a server of the same process group need sockets; these reach nothing else. A user
    without rights may make a network inside a user namespace, where the kernel and the container allow those.

    Raises:
        OSError: the system cannot, or does not let it.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "only Linux gives a process a network of its own")
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) < 0:
        number = ctypes.get_errno()
        raise OSError(
            number, f"this machine gives a process no network of its own (unshare: {os.strerror(number)})"
        )
    Path("/proc/self/setgroups").write_text("deny")
    for ids, own in (("uid_map", user), ("gid_map", group)):
        # A root user who has dropped all capabilities may not: it then has the rights of root to files, and no name.
        with contextlib.suppress(PermissionError):
            Path(f"/proc/self/{ids}").write_text(f"{own} {own} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    _check(libc.capset(_CAPABILITIES, bytes(24)), "capset")  # those of the new user namespace


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
