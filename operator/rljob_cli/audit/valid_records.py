"""Selects the valid records of a ledger: those in its chain that the coordinator of the current epoch wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rljob_cli.audit.evidence import LedgerMessage
from rljob_core.records import EpochClaimed, Record, RecordBatch, Writer


@dataclass(slots=True)
class ValidRecords:
    """Tracks which coordinator may write the ledger while the ledger is read once, in order.

    The valid writer is the instance that was the first to claim the newest epoch so far. Records that an earlier
    coordinator appends after that claim are ignored, and so is a later claim of the same epoch. A message that was not
    appended to the message that it names as its predecessor is ignored, too, whatever its writer: the writer had seen
    an end of the ledger that was lost later.

    Attributes:
        valid: number of valid records.
        fenced: number of records that writers without the newest epoch appended.
        astray: number of messages that are not in the chain.
        missing: sequences of messages that are missing from the middle of the ledger.
        claims: sequence and record of each valid claim.
        writer: the valid writer after the messages read so far.
    """

    valid: int = 0
    fenced: int = 0
    astray: int = 0
    missing: list[int] = field(default_factory=list)
    claims: list[tuple[int, EpochClaimed]] = field(default_factory=list)
    writer: Writer = field(default_factory=lambda: Writer(0, ""))

    def records(self, ledger: Iterable[LedgerMessage]) -> Iterator[Record]:
        """Yield the valid records in order, and update the attributes."""
        return (record for _, batch in self.batches(ledger) for record in batch.records)

    def batches(self, ledger: Iterable[LedgerMessage]) -> Iterator[tuple[LedgerMessage, RecordBatch]]:
        """Yield each message with valid records, and these, in order; update the attributes."""
        expected = 1
        for message in ledger:
            self.missing += range(expected, message.sequence)
            expected = message.sequence + 1
            self.astray += not message.counts
            batch = message.batch
            if batch is None or not message.counts:
                continue
            for record in batch.records:
                if isinstance(record, EpochClaimed) and record.number > self.writer.number:
                    self.writer = Writer(record.number, record.instance)
                    self.claims.append((message.sequence, record))
            if batch.writer == self.writer:
                self.valid += len(batch.records)
                yield message, batch
            else:
                self.fenced += len(batch.records)
