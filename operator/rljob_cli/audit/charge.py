"""Which records of a ledger count: those in messages of its chain, written by the coordinator of the current epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rljob_cli.audit.evidence import LedgerMessage
from rljob_core.records import EpochClaimed, Record, Writer


@dataclass(slots=True)
class Charge:
    """Who was in charge of the ledger, read once from end to end.

    In charge is the instance that was the first to claim the newest epoch so far: a zombie's records that follow are
    void, and so is a later claim of the same number. A message that was not appended to the one that it names is void
    whoever wrote it: its writer knew another end of the ledger, which is lost.

    Attributes:
        valid, fenced: how many records count; how many are of fenced writers.
        astray: how many messages are not in the chain.
        missing: sequences of messages that are gone from the middle of the ledger.
        jobs: sequence of each claim that counts, and the UID of the job that it is for.
    """

    valid: int = 0
    fenced: int = 0
    astray: int = 0
    missing: list[int] = field(default_factory=list)
    jobs: list[tuple[int, str]] = field(default_factory=list)

    def records(self, ledger: Iterable[LedgerMessage]) -> Iterator[Record]:
        """Records of whoever was in charge when they were stored."""
        writer = Writer(0, "")
        expected = 1
        for message in ledger:
            self.missing += range(expected, message.sequence)
            expected = message.sequence + 1
            self.astray += not message.counts
            batch = message.batch
            if batch is None or not message.counts:
                continue
            for record in batch.records:
                if isinstance(record, EpochClaimed) and record.number > writer.number:
                    writer = Writer(record.number, record.instance)
                    self.jobs.append((message.sequence, record.job))
            if batch.writer == writer:
                self.valid += len(batch.records)
                yield from batch.records
            else:
                self.fenced += len(batch.records)
