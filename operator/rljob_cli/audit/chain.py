"""The check that nobody has rewritten the ledger: its chain of digests, and the manifests that name parts of it."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evidence import Violation, damage
from rljob_cli.audit.valid_records import ValidRecords
from rljob_core.records import MicroBatchAssigned, StepCommitted


def unaltered(run: AuditedRun) -> CheckOutcome:
    """Check that each message has the digest of itself and all before it, and that the manifests' digests are of these.

    A manifest has the digest that the ledger had when its step's last micro-batch was sent. The ledger must have had
    it between the record of that micro-batch and the commit, unless the commit was restored: the ledger may have lost
    that digest. An earlier digest would leave what follows it open to be rewritten.
    """
    found: list[Violation] = []
    seen: dict[str, int] = {}
    for message in run.evidence.ledger:
        if not message.counts:
            continue
        if message.digest != message.expected_digest:
            text = (
                "does not have the digest of what it holds and of what precedes it: one of them was altered"
            )
            found.append(damage((f"message {message.sequence}",), text))
        seen.setdefault(message.digest, message.sequence)
    found += _misnamed(run, seen)
    return len(seen), found


def _misnamed(run: AuditedRun, seen: dict[str, int]) -> Iterator[Violation]:
    """Commits whose manifest names another digest than the ledger (`seen`) had while the step's proposal was due."""
    assigned = 0
    ledger, writer = run.evidence.ledger, run.history.records.writer
    valid = {message.sequence for message, _ in ValidRecords().batches(ledger)}
    for message in ledger:
        batch = message.batch
        if batch is None or not message.counts or batch.writer.number > writer.number:
            continue
        for record in batch.records:
            if isinstance(record, MicroBatchAssigned) and message.sequence in valid:
                assigned = message.sequence
            elif isinstance(record, StepCommitted):
                name, named = (f"version {record.version}",), seen.get(record.ledger)
                if named is None or named >= message.sequence:
                    yield Violation(name, "its manifest names a ledger that this one does not continue")
                elif named < assigned:
                    text = (
                        f"its manifest names the ledger up to message {named}, but the step's last micro-batch is in "
                        f"message {assigned}"
                    )
                    yield Violation(name, text)
