"""Collects what a process writes, up to a limit."""

from __future__ import annotations

import selectors
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECE = 1 << 16


@dataclass(slots=True)
class Collected:
    """What was written so far, and how much may be.

    Attributes:
        most: bytes of both together that are kept.
        full: whether there was more.
    """

    most: int
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    full: bool = False

    def add(self, to: bytearray, piece: bytes) -> None:
        """Keep what there is room for."""
        room = self.most - len(self.output) - len(self.errors)
        to += piece[:room]
        self.full = self.full or len(piece) > room


def collect(process: subprocess.Popen[bytes], collected: Collected, *, every: float) -> Iterator[None]:
    """Read until the process has ended; yields every few moments, and between pieces.

    Args:
        process: with pipes for standard output and standard error.
        collected: what is read.
        every: seconds between two yields, at most.
    """
    with selectors.DefaultSelector() as selector:
        for pipe, to in ((process.stdout, collected.output), (process.stderr, collected.errors)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, to)
        while selector.get_map():
            for key, _ in selector.select(every):
                piece = key.fileobj.read1(_PIECE)  # type: ignore[union-attr]
                if piece:
                    collected.add(key.data, piece)
                else:
                    selector.unregister(key.fileobj)
            yield
    while process.poll() is None:  # it has closed both, and lives
        try:
            process.wait(every)
        except subprocess.TimeoutExpired:
            yield
