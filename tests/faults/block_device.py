"""A disk of its own for a run, whose power can be cut: what was not synced by then is lost, as with a real machine.

The disk is an ext4 file system in a file, on a loop device. `FS_IOC_SHUTDOWN` without a flush of the journal is what
file systems offer for this very test: from that call on, nothing reaches the device, and what only the page cache or
the journal in memory holds is lost. Mounting the file system again replays its journal, as after a power cut.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import time
from functools import cache
from pathlib import Path

#: Only root can mount. Where all tests are required, one that cannot mount fails.
MAY_MOUNT = os.geteuid() == 0 or bool(os.environ.get("RLJOB_E2E_REQUIRED"))
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN, linux/fs.h: _IOR('X', 125, __u32)
_WITHOUT_LOG_FLUSH = 2  # FS_SHUTDOWN_FLAGS_NOLOGFLUSH
_SIZE = 512 << 20  # bytes; the file is sparse
_PATIENCE = 300.0  # seconds
_NEW_MOUNT_NAMESPACE = 0x00020000  # CLONE_NEWNS, linux/sched.h


class Disk:
    """An ext4 file system in a file.

    Args:
        image: the file.
        place: where it is mounted.
    """

    def __init__(self, image: Path, place: Path) -> None:
        _own_mounts()
        self.image, self.place = image, place
        with image.open("wb") as file:
            file.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-F", str(image))
        place.mkdir(parents=True)
        self.mount()
        (place / "lost+found").rmdir()

    def mount(self) -> None:
        """Mount it. The kernel writes the journal by itself once in ten minutes only: an unsynced file is lost."""
        _run("mount", "-o", "loop,commit=600", str(self.image), str(self.place))

    def cut_power(self) -> None:
        """Lose everything that is not on the device; every later access fails."""
        place = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(place, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(place)

    def restore_power(self) -> None:
        """Mount what the device holds; no process may have a file of it open."""
        self.unmount()
        self.mount()

    def unmount(self) -> None:
        """Unmount it, if it is mounted; the loop device goes with it. Waits for killed processes that still use it."""
        deadline = time.monotonic() + _PATIENCE
        while self.place.is_mount():
            try:
                _run("umount", str(self.place))
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@cache
def _own_mounts() -> None:
    """Give this process mounts of its own, which end with it and its children even if they are killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNT_NAMESPACE) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr}")
