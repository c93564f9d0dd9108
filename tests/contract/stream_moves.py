"""What the operator says while it moves a job's streams: each of its sentences is true for a moment only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cluster_jobs import SECONDS, job_of, prepare

from rljob_operator.reconcile import shared_streams
from rljob_operator.reconcile.job_streams import JobStreams


def moves(streams: JobStreams) -> Mapping[str, Any]:
    """Those that have begun, by UID."""
    assert streams._shared is not None
    return streams._shared._moves


def words(streams: JobStreams, uid: str) -> str:
    """What is said of a job's streams."""
    trouble = streams.trouble(job_of(uid))
    return trouble.message if trouble is not None else ""


@contextmanager
def listening(heard: Callable[[], None]) -> Iterator[None]:
    """Call `heard` whenever a move says something else."""

    def say(move: Any, sentence: str) -> None:
        vars(move)["words"] = sentence
        heard()

    said = property(lambda move: vars(move)["words"], say)
    with patch.object(shared_streams._Move, "words", said, create=True):
        yield


async def until_said(streams: JobStreams, uid: str, beginning: str) -> None:
    """Begin a move, again where an attempt ended early, and wait until the operator says what begins like that."""
    reached = asyncio.Event()

    def heard() -> None:
        if words(streams, uid).startswith(beginning):
            reached.set()

    with listening(heard):
        preparing = asyncio.create_task(prepare(streams, job_of(uid)))
        try:
            async with asyncio.timeout(SECONDS):
                await reached.wait()
        finally:
            preparing.cancel()  # without waiting for its end: the moment would be over
