"""Reference counts of stored messages: a message of several trajectories is needed until all of them have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Key = tuple[str, int]
"""Trajectory id and attempt."""


class MessageRefcounts:
    """The messages of one stream that were read, with the attempts that still need each.

    Attributes:
        newest: the highest sequence that was read.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._holders: dict[int, set[Key]] = {}
        self._messages: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, sequence: int, keys: Sequence[Key]) -> None:
        """Count a message that was read, and the attempts in it."""
        self.newest = max(self.newest, sequence)
        self._holders[sequence] = set(keys)
        for key in keys:
            # An attempt may be stored twice, if a publish was repeated after the duplicate window. The first message
            # counts; the second is not needed for it.
            if self._messages.setdefault(key, sequence) != sequence:
                self._holders[sequence].discard(key)

    def release(self, keys: Iterable[Key]) -> None:
        """These attempts need their messages no longer."""
        for key in keys:
            sequence = self._messages.pop(key, None)
            if sequence is not None:
                self._holders[sequence].discard(key)

    def collect(self) -> list[int]:
        """Sequences of messages that no attempt needs; each is returned once."""
        done = [sequence for sequence, holders in self._holders.items() if not holders]
        for sequence in done:
            del self._holders[sequence]
        return done
