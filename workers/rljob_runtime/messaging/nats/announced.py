"""What the server says to be stored in a stream, as one reader of the stream hears it."""

from __future__ import annotations

from collections import deque

from rljob_runtime.messaging.nats.client import Received


class Announced:
    """How far a stream goes by the server's word, and the headers of its newest messages.

    Args:
        kept_bytes: how many bytes of headers to keep, of consecutive messages; 0 to keep none.
    """

    def __init__(self, kept_bytes: int = 0) -> None:
        self.last = 0
        """Newest sequence that the server has said to be stored; 0 if it has said nothing yet."""
        self._limit = kept_bytes
        self._headers: deque[tuple[Received, int]] = deque()
        self._size = 0

    def add(self, message: Received) -> None:
        """Take the server's word that a message is stored."""
        headers = message.headers or {}
        number = headers.get("Nats-Sequence", "")
        self.last = sequence = int(number) if number.isdecimal() else 0
        if not self._limit:
            return
        size = _size(message)
        if self._headers and (sequence != self._headers[-1][1] + 1 or self._size + size > self._limit):
            self._drop_headers()
        self._headers.append((message, sequence))
        self._size += size

    def has(self, sequence: int) -> bool:
        """Whether the headers of this message and of those after it are here; those of earlier ones are dropped."""
        while self._headers and self._headers[0][1] < sequence:
            self._pop()
        return bool(self._headers) and self._headers[0][1] == sequence

    def take(self, most: int) -> list[tuple[Received, int]]:
        """The first headers, of `most` messages at most, with their sequences."""
        return [self._pop() for _ in range(min(most, len(self._headers)))]

    def forget(self) -> None:
        """Forget everything: another server may speak from now on."""
        self.last = 0
        self._drop_headers()

    def _pop(self) -> tuple[Received, int]:
        message, sequence = self._headers.popleft()
        self._size -= _size(message)
        return message, sequence

    def _drop_headers(self) -> None:
        self._headers.clear()
        self._size = 0


def _size(message: Received) -> int:
    return sum(map(len, (message.headers or {}).values()))
