"""A hash that is the same in every process and release (Python's own is salted)."""

from __future__ import annotations

import zlib


def stable_hash(text: str) -> int:
    """CRC-32 of the text's UTF-8 bytes, an integer of 32 bits."""
    return zlib.crc32(text.encode())
