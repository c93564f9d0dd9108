"""Reference counts of stored messages: a message of several trajectories is needed until all of them have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

AttemptKey = tuple[str, int]
"""Trajectory id and attempt."""


class MessageRefcounts:
    """The messages of one stream that were read, with the attempts that still need each.

    Attributes:
        newest: the highest sequence that was read.
        idle_bytes: what attempts that have ended still take in messages that other attempts need.
    """

    def __init__(self) -> None:
        self.newest = 0
        self.idle_bytes = 0
        self._holders: dict[int, dict[AttemptKey, int]] = {}
        self._idle: dict[int, int] = {}
        self._messages: dict[AttemptKey, int] = {}
        self._unneeded: list[int] = []

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, sequence: int, keys: Sequence[AttemptKey], sizes: Sequence[int] = ()) -> None:
        """Count a message that was read, and the attempts in it.

        Args:
            sequence: of the message.
            keys: the attempts in it.
            sizes: bytes that each of them takes; nothing, if `idle_bytes` does not matter.
        """
        self.newest = max(self.newest, sequence)
        self._holders[sequence] = dict(zip(keys, sizes or [0] * len(keys), strict=True))
        if not keys:
            self._unneeded.append(sequence)
        for key in keys:
            # An attempt may be stored twice, if a publish was repeated after the duplicate window. The first message
            # counts; the second is not needed for it.
            if self._messages.setdefault(key, sequence) != sequence:
                self._end(sequence, key)

    def release(self, keys: Iterable[AttemptKey]) -> None:
        """These attempts need their messages no longer."""
        for key in keys:
            sequence = self._messages.pop(key, None)
            if sequence is not None:
                self._end(sequence, key)

    def _end(self, sequence: int, key: AttemptKey) -> None:
        holders = self._holders[sequence]
        size = holders.pop(key, None)
        if size is None:
            return
        if holders:
            self._idle[sequence] = self._idle.get(sequence, 0) + size
            self.idle_bytes += size
        else:  # it is about to be deleted
            self.idle_bytes -= self._idle.pop(sequence, 0)
            self._unneeded.append(sequence)

    def collect(self) -> list[int]:
        """Sequences of messages that no attempt needs; each is returned once."""
        # One that was read again meanwhile may be needed again.
        done = sorted({s for s in self._unneeded if s in self._holders and not self._holders[s]})
        self._unneeded = []
        for sequence in done:
            del self._holders[sequence]
        return done
