"""A copy of the streams of a run that has ended, in the temporary folder: a server writes into what it serves.

Contexts are left to their end, however often who holds them is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from rljob_core.errors import SpecError

T = TypeVar("T")
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


@asynccontextmanager
async def uninterrupted(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Hold a context in a task of its own: a cancellation ends the body, or the start, but not what ends the context.

    Args:
        context: is entered and left in the same task.
    """
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    left = asyncio.Event()

    async def hold() -> None:
        async with context as value:
            entered.set_result(value)
            await left.wait()

    holding = asyncio.create_task(hold())
    try:
        either: set[asyncio.Future[Any]] = {holding, entered}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await holding  # it could not be entered: raises why
        yield entered.result()
    finally:
        left.set()
        if not entered.done():
            holding.cancel()  # once, while it is still being entered
        await until_done(holding)
    holding.result()


async def until_done(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, whatever it raised; a cancellation of the caller counts once it has.

    Raises:
        CancelledError: the caller was cancelled meanwhile.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # it is looked at, so that nobody logs that nobody did
    if cancelled is not None:
        raise cancelled
