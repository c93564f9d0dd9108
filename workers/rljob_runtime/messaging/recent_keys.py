"""Remembers the newest keys, such as ids of messages, in bounded memory, so that a repeated one is recognised."""

from __future__ import annotations


class RecentKeys:
    """The newest `limit` keys that were added."""

    def __init__(self, limit: int) -> None:
        self._keys: dict[str, None] = {}
        self._limit = limit

    def add(self, key: str) -> bool:
        """Add a key; whether it was not among the newest ones."""
        if key in self._keys:
            return False
        self._keys[key] = None
        if len(self._keys) > self._limit:
            del self._keys[next(iter(self._keys))]
        return True

    def __contains__(self, key: str) -> bool:
        return key in self._keys
