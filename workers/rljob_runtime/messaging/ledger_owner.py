"""Decides by its claims which job a ledger belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_core.errors import CorruptLedger
from rljob_core.records import EpochClaimed, Record


@dataclass(slots=True)
class Owner:
    """The job that a ledger belongs to, by its claims, in order.

    A ledger that a backup was restored from begins with the claims of the former job, and the restore's own claim says
    that another one continues it.

    Attributes:
        job: UID; empty before the first claim.
        since: sequence of that job's first claim.
    """

    job: str = ""
    since: int = 0

    def follow(self, records: Iterable[Record], sequence: int) -> None:
        """Read the records of the message of that sequence.

        Raises:
            CorruptLedger: a claim is of another job than the one before it, and does not say that it continues it.
        """
        for claimed in records:
            if isinstance(claimed, EpochClaimed):
                before = claimed.former or claimed.job
                if self.job not in {"", before}:
                    raise _foreign(sequence, before, self.job)
                if self.job != claimed.job:
                    self.job, self.since = claimed.job, sequence

    def check(self, job: str) -> None:
        """Check that the ledger, read to its end, is this job's, or nobody's yet.

        Raises:
            CorruptLedger: it is not.
        """
        if self.job not in {"", job}:
            raise _foreign(self.since, self.job, job)


def _foreign(sequence: int, found: str, expected: str) -> CorruptLedger:
    return CorruptLedger(
        f"message {sequence} of the ledger is of the job {found}, not of {expected}: "
        "name this job's own output folder or NATS account"
    )
