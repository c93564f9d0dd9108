"""Texts of others on a terminal: what a terminal would obey is shown instead."""

from __future__ import annotations

_SHOWN_AS: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x0A: "↵",
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}


def harmless(text: str) -> str:
    """A text with signs for what a terminal would obey: an answer may hold anything."""
    return text.translate(_SHOWN_AS)
