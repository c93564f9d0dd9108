"""Whether a copy of a JetStream stream can still follow its original."""

from __future__ import annotations


def is_beyond(copy: int, original: int) -> bool:
    """Whether a copy has messages that its original has lost, as with the machine of its server.

    The copy would take nothing that the original stores at those sequences, and report no error.

    Args:
        copy: its newest sequence.
        original: the newest sequence of the original, read no earlier.
    """
    return copy > original
