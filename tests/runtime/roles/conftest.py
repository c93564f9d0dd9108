"""Fixtures of several tests of roles."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rljob_core import worker_protocol
from rljob_runtime.process.alive import AliveReader


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[AliveReader]:
    """What the process that watches hears."""
    reading, writing = os.pipe()
    monkeypatch.setenv(worker_protocol.ALIVE_PIPE, str(writing))
    yield AliveReader(reading)
    os.close(reading)
    os.close(writing)
