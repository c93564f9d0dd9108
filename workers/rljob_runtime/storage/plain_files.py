"""Opens files in folders that others have written: regular files only, of a bounded size, below a folder.

A FIFO would block its reader, a device would never end, and a link would have a file from elsewhere taken for one of
the folder, or overwritten.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path


class NotPlain(ValueError):
    """What has the file's name is no regular file, lies outside of the folder, or is too large."""


def open_plain(path: Path, *, within: Path | None = None) -> FileIO:
    """Open a regular file for reading, without a buffer.

    Args:
        path: of the file.
        within: folder that it must be in, links resolved; None: any.

    Raises:
        NotPlain: it is a folder, a FIFO, a device or a socket, or outside of `within`.
        OSError: it does not exist, or cannot be opened.
    """
    whole = Path(os.path.realpath(path))
    if within is not None and not whole.is_relative_to(within.resolve()):
        raise NotPlain(f"{path} is a link that leads out of {within}")
    # A FIFO without a writer opens at once.
    descriptor = os.open(whole, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain(f"{path} is no regular file")
    return FileIO(descriptor)


def read_plain(path: Path, *, limit: int, within: Path | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        NotPlain: it is none, or larger; or see `open_plain`, as for what else is raised.
    """
    with BufferedReader(open_plain(path, within=within)) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise NotPlain(f"{path} has more than {limit:,} bytes")
    return content


def create_plain(path: Path) -> BufferedWriter:
    """Open a new file for writing, in place of what has its name: what a link there leads to stays as it is.

    Raises:
        OSError: it cannot be written.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")
