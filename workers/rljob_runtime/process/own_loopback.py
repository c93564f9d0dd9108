"""Gives this process a network of its own, in which is nothing but the loopback device, for good.

Programs that speak HTTP to a server of the same process group need sockets. In a network namespace of their own these
reach no other machine, and no other process of this one. A user without rights may make one inside a user namespace,
where the kernel and the container allow those.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h
_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread


def enter_own_loopback() -> None:
    """Leave the network of this process, which has one thread only, and take up a loopback device of its own.

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
    if libc.capset(_CAPABILITIES, bytes(24)) < 0:  # those of the new user namespace
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
