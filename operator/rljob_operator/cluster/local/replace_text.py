"""Replaces a text file atomically, and durably where its content must survive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file: a reader, or a crash of this process, sees the old text or the new text.

    Args:
        path: the file.
        text: its new content.
        durable: make the new text survive a crash of the machine before returning. Without it, such a crash may leave
            an empty file.

    Raises:
        OSError: the file cannot be written; its content is as it was.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(
            missing_ok=True
        )  # of an earlier process, or a link: what that leads to stays as it is
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
