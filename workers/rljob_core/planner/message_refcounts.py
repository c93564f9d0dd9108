"""Which stored messages are still needed: a message that carries several trajectories lives until all have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Key = tuple[str, int]
"""Trajectory id and attempt."""


class MessageRefcounts:
    """Reference counts of messages by the trajectories in them.

    Attributes:
        newest: the last sequence that was seen.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._holders: dict[int, set[Key]] = {}
        self._messages: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, sequence: int, keys: Sequence[Key]) -> None:
        """A message was seen that carries these."""
        self.newest = max(self.newest, sequence)
        self._holders[sequence] = set(keys)
        for key in keys:
            # The same attempt stored twice (a publish repeated past the duplicate window): the first one counts,
            # the second holds nothing.
            if self._messages.setdefault(key, sequence) != sequence:
                self._holders[sequence].discard(key)

    def release(self, keys: Iterable[Key]) -> None:
        """These trajectories have ended, or other attempts hold them."""
        for key in keys:
            sequence = self._messages.pop(key, None)
            if sequence is not None:
                self._holders[sequence].discard(key)

    def collect(self) -> list[int]:
        """Sequences of messages that nobody needs any more; they are forgotten here."""
        done = [sequence for sequence, holders in self._holders.items() if not holders]
        for sequence in done:
            del self._holders[sequence]
        return done
