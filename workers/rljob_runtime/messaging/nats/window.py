"""Bounds how many messages and bytes are under way to the server at once."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """Bounds what is in flight, by messages and by bytes, first come first served."""

    def __init__(self, *, messages: int, size: int) -> None:
        self._messages = messages
        self._size = size
        self._used_messages = 0
        self._used_size = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait for room for one message of `size` bytes; one larger than the window goes alone."""
        if not self._queue and self._fits(size):
            self._take(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            raise

    def _fits(self, size: int) -> bool:
        return self._used_messages == 0 or (
            self._used_messages < self._messages and self._used_size + size <= self._size
        )

    def _take(self, size: int) -> None:
        self._used_messages += 1
        self._used_size += size

    def leave(self, size: int) -> None:
        """Give the room back."""
        self._used_messages -= 1
        self._used_size -= size
        while self._queue and (self._queue[0][1].cancelled() or self._fits(self._queue[0][0])):
            waiting, turn = self._queue.popleft()
            if not turn.cancelled():
                self._take(waiting)
                turn.set_result(None)
