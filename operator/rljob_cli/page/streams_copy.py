"""A copy of the streams of a run that has ended, in the temporary folder: a server writes into what it serves."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rljob_cli.page.uninterrupted import until_done
from rljob_core.errors import SpecError

_CHUNK_BYTES = 1 << 20


class CopyStopped(Exception):
    """Nobody wants the copy any more."""


@asynccontextmanager
async def copied_streams(store: Path) -> AsyncIterator[Path]:
    """Copy streams into a temporary folder; yields the folder for a server, which has them as `store`.

    A cancellation stops the copying; the copy, or the part of it that there is, is removed in any case.

    Raises:
        SpecError: there is no room.
        OSError: a file cannot be copied.
    """
    stop = threading.Event()
    scratch = Path(tempfile.mkdtemp(prefix="rljob-ui-"))
    try:
        folder = scratch / "nats"
        copying = asyncio.create_task(asyncio.to_thread(_copy, store, folder / "store", stop))
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:
            stop.set()
            await until_done(copying)  # the thread would write into the folder after it was removed
            raise
        yield folder
    finally:
        await until_done(asyncio.create_task(asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)))


def _copy(source: Path, target: Path, stop: threading.Event) -> None:
    size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size * 1.2 > free:
        raise SpecError(
            "", f"its streams ({size >> 20} MB) are read in a copy, and {tempfile.gettempdir()} has no room"
        )

    def copy_file(of: str, to: str) -> None:
        if not Path(of).is_file():
            raise shutil.SpecialFileError(f"{of} is not a plain file")
        with Path(of).open("rb") as read, Path(to).open("wb") as written:
            while chunk := read.read(_CHUNK_BYTES):
                if stop.is_set():
                    raise CopyStopped
                written.write(chunk)

    shutil.copytree(source, target, copy_function=copy_file)
