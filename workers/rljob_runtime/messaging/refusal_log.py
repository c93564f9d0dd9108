"""Counts the messages that a role refuses, and logs some of them: the first, tenth, hundredth, … of each sender."""

from __future__ import annotations

import logging
from collections import Counter

from rljob_core.words import one_line

log = logging.getLogger(__name__)

SENDERS = 1000
"""Senders that are counted separately; one that can write any subject could otherwise fill the memory with names."""

_FIRST_CHARACTERS = 80


class Refusals:
    """How many messages of each sender were refused; the first, tenth, hundredth, … of each is logged."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, subject: str, data: bytes, why: str) -> None:
        """Count one refused message.

        Args:
            subject: of the message, below that of the job.
            data: its payload, whose first words are logged.
            why: what is wrong with it.
        """
        sender = subject if subject in self.counts or len(self.counts) < SENDERS else "others"
        self.counts[sender] += 1
        count = self.counts[sender]
        if set(str(count)[1:]) <= {"0"} and str(count)[0] == "1":
            first = one_line(data[:_FIRST_CHARACTERS].decode(errors="replace"))
            log.warning("refused %d of what %s sent: %s: %s", count, one_line(subject), one_line(why), first)
