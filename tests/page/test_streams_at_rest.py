"""The streams of a run that has ended are read in a copy: made when it can be served, seldom, and always removed."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from served_page import LINE, a_run, page, until
from tests.waiting import in_time

from rljob_cli.page import streams, streams_copy
from rljob_cli.page.auditing import RunAudits
from rljob_cli.page.files import RunFiles
from rljob_cli.page.streams import RunStreams
from rljob_cli.page.streams_copy import copied_streams, uninterrupted
from rljob_core.errors import StoreUnavailable

PATIENCE = 300.0


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder, in which nothing must be left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


class FailingStreams(RunStreams):
    """Streams that no server can read; keeps for how long it waited after each try."""

    def __init__(self, path: Path) -> None:
        super().__init__(RunFiles(path), RunAudits(path))
        self.pauses: list[float] = []

    async def _follow_once(self) -> None:
        raise StoreUnavailable("damaged")

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.closing = len(self.pauses) == 12


async def test_streams_that_cannot_be_served_are_copied_less_and_less_often(tmp_path: Path) -> None:
    followed = FailingStreams(a_run(tmp_path / "run", LINE))
    await followed.follow()
    assert followed.pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


async def test_without_a_nats_server_nothing_is_copied_and_the_page_names_the_remedy(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise StoreUnavailable("none")

    def copied(*_: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(streams, "binary", missing)
    monkeypatch.setattr(streams_copy, "_copy", copied)
    folder = a_run(tmp_path / "run", LINE)
    (folder / "nats" / "store").mkdir(parents=True)
    async with page(folder) as client:
        await until(client, lambda state: "pip install 'rljob[local]'" in str(state["problems"]))


async def test_copying_stops_when_it_is_cancelled_and_leaves_nothing(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for number in range(20):
        (store / f"{number}.blk").write_bytes(b"x" * 10)
    copied: list[Path] = []
    began, go_on = threading.Event(), threading.Event()

    class SlowFile(type(store)):  # type: ignore[misc]
        def open(self, mode: str = "r", *rest: object, **more: object) -> object:
            if mode == "wb":
                copied.append(self)
                began.set()
                go_on.wait(PATIENCE)
            return super().open(mode, *rest, **more)

    monkeypatch.setattr(streams_copy, "Path", SlowFile)

    async def hold() -> None:
        async with copied_streams(store):
            pass

    task = asyncio.create_task(hold())
    await asyncio.to_thread(began.wait, PATIENCE)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()  # it waits for the thread
    task.cancel()
    await asyncio.sleep(0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(copied) == 1


async def test_a_copy_is_whole_and_removed_afterwards(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "a" / "1.blk").write_bytes(b"content")
    async with copied_streams(tmp_path / "store") as folder:
        assert (folder / "store" / "a" / "1.blk").read_bytes() == b"content"


async def test_the_server_of_a_copy_is_stopped_to_its_end_however_often_the_page_closes(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    stopping, stopped = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def slow_server(folder: Path, *_: object) -> AsyncIterator[str]:
        yield "nats://127.0.0.1:1"
        stopping.set()
        await stopped.wait()
        told.append("with its files" if folder.exists() else "without its files")

    monkeypatch.setattr(streams, "streams_at_rest", slow_server)
    folder = a_run(tmp_path / "run", LINE)
    (folder / "nats" / "store").mkdir(parents=True)
    files = RunFiles(folder)
    files.refresh()
    assert files.identity is not None
    followed, began = RunStreams(files, RunAudits(folder)), asyncio.Event()

    async def look() -> None:
        async with followed._at_rest(files.identity):  # type: ignore[arg-type]
            began.set()
            await asyncio.Event().wait()

    looking = asyncio.create_task(look())
    await in_time(began.wait())
    for _ in range(3):
        looking.cancel()
        await in_time(stopping.wait())
        await asyncio.sleep(0.01)
    assert not looking.done()
    stopped.set()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert told == ["with its files"]


async def test_a_context_that_is_being_entered_is_cancelled_once_and_one_that_cannot_be_says_why() -> None:
    starting, may_end = asyncio.Event(), asyncio.Event()
    cancelled = 0

    @asynccontextmanager
    async def slow() -> AsyncIterator[int]:
        nonlocal cancelled
        starting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            await may_end.wait()
            raise
        yield 1

    async def hold() -> None:
        async with uninterrupted(slow()):
            raise AssertionError

    task = asyncio.create_task(hold())
    await starting.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert (task.done(), cancelled) == (False, 1)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    @asynccontextmanager
    async def broken() -> AsyncIterator[int]:
        raise StoreUnavailable("no room")
        yield 1

    with pytest.raises(StoreUnavailable, match="no room"):
        async with uninterrupted(broken()):
            raise AssertionError
