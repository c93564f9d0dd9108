"""Reports through a pipe, to the process that watches this one, that it is alive and what work it begins.

It writes lines into the pipe. A number says for how many seconds it may be silent from then on; 0 means without limit.
Before the first number nothing is expected of it, because nobody knows how long it takes to load a model. `begins NAME`
names the work that it is beginning, which is thought to be the cause if it dies now; `begins` alone says that there is
none.

`makes NAME TOKENS` says that it makes tokens of NAME from now on, and how many there are; `ends NAME` that it does no
more; `steps NUMBER` how many tokens it has made of each that it made all the time. So it need not say for each of them
how many there are.
"""

from __future__ import annotations

import os
from contextlib import suppress

from rljob_core import worker_protocol

_PIECE = 1 << 12
_BEGINS, _MAKES, _ENDS, _STEPS = b"begins", b"makes", b"ends", b"steps"
_MOST_NAMES = 10_000
"""Names that are kept: a word of an end is lost while the pipe is full."""


class AliveWriter:
    """The end of the pipe in the process that is watched; it does nothing if nobody watches."""

    def __init__(self) -> None:
        number = os.environ.pop(worker_protocol.ALIVE_PIPE, None)
        self._pipe = None if number is None else int(number)
        if self._pipe is not None:
            os.set_inheritable(self._pipe, False)  # not for processes that this one starts
            os.set_blocking(self._pipe, False)

    @property
    def is_read(self) -> bool:
        """Whether another process watches this one."""
        return self._pipe is not None

    def say(self, seconds: int) -> None:
        """Be silent for so many seconds at most; 0 for as long as it likes."""
        self._write(b"%d" % seconds)

    def begin(self, name: str) -> None:
        """Begin something, of which the process may die; empty: it has been begun."""
        self._write(b"%s %s" % (_BEGINS, name.encode()))

    def make(self, name: str, tokens: int) -> None:
        """Make tokens of something, of which there are so many."""
        self._write(b"%s %s %d" % (_MAKES, name.encode(), tokens))

    def end(self, name: str) -> None:
        """Make no more tokens of it."""
        self._write(b"%s %s" % (_ENDS, name.encode()))

    def steps(self, number: int) -> None:
        """Have made so many tokens, since this process began, of each that it made all the time."""
        self._write(b"%s %d" % (_STEPS, number))

    def _write(self, line: bytes) -> None:
        if self._pipe is not None:
            with suppress(OSError):  # the pipe is full of what nobody has read, or its reader has ended
                os.write(self._pipe, line + b"\n")


class AliveReader:
    """The end of the pipe in the process that watches.

    Silence is counted in calls of `tick`, not by a clock: a process that was stopped together with the one it watches
    counts nothing meanwhile.

    Args:
        pipe: file descriptor to read from.

    Attributes:
        limit: ticks for which the other may be silent now; 0 for without end.
        beginning: what the other is beginning, by its last word; empty for nothing.
    """

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._rest = b""
        self._silent = 0
        self.limit = 0
        self.beginning = ""
        self._steps = 0
        self._made: dict[str, int] = {}  # how many tokens less than steps there are of each

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens there are of what the other makes, by its last word."""
        return {name: max(0, self._steps - less) for name, less in self._made.items()}

    def tick(self) -> bool:
        """Count one second; whether the other has been silent for too long."""
        if not self.read():
            self._silent += 1
        return 0 < self.limit < self._silent

    def read(self) -> bool:
        """Read what the other has said; whether it has said that it is alive."""
        said = self._rest
        with suppress(BlockingIOError):
            while piece := os.read(self._pipe, _PIECE):
                said += piece
        *lines, self._rest = said.split(b"\n")
        alive = False
        for line in lines:
            word, _, name = line.partition(b" ")
            if word == _BEGINS:
                self.beginning = name.decode(errors="replace")
            elif word in {_MAKES, _ENDS, _STEPS}:
                self._count(word, *name.decode(errors="replace").split(" "))
            else:
                self.limit, self._silent, alive = int(word or b"0"), 0, True
        return alive

    def _count(self, word: bytes, first: str, tokens: str = "0") -> None:
        if word == _STEPS:
            self._steps = int(first)
        elif word == _ENDS:
            self._made.pop(first, None)
        else:
            self._made[first] = self._steps - int(tokens)
            if len(self._made) > _MOST_NAMES:
                del self._made[next(iter(self._made))]
