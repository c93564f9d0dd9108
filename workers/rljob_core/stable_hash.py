"""A hash that is the same in every process and release (Python's own is salted)."""

from __future__ import annotations

import zlib


def stable_hash(text: str) -> int:
    """32 bits of a text."""
    return zlib.crc32(text.encode())
