"""The check that nobody has rewritten the ledger: its chain of digests, and the manifests that name parts of it."""

from __future__ import annotations

from rljob_cli.audit.case import Case, Refuted
from rljob_cli.audit.evidence import Violation, damage
from rljob_core.records import StepCommitted


def unaltered(case: Case) -> Refuted:
    """Check that each message has the digest of itself and all before it, and that the manifests' digests are of these.

    A manifest has the digest that the ledger had when its step's last micro-batch was sent. The ledger must have had
    it before it committed the step, unless the commit was restored because the ledger had lost its end.
    """
    found: list[Violation] = []
    seen: dict[str, int] = {}
    for message in case.evidence.ledger:
        if not message.counts:
            continue
        if message.digest != message.expected_digest and (message.digest or seen):
            text = (
                "does not have the digest of what it holds and of what precedes it: one of them was altered"
            )
            found.append(damage((f"message {message.sequence}",), text))
        if message.digest:
            seen.setdefault(message.digest, message.sequence)
        if message.batch is None or message.batch.writer.number > case.history.charge.writer.number:
            continue
        found += [
            Violation(
                (f"version {record.version}",), "its manifest names a ledger that this one does not continue"
            )
            for record in message.batch.records
            if isinstance(record, StepCommitted)
            and record.ledger
            and seen.get(record.ledger, message.sequence) >= message.sequence
        ]
    return len(seen), found
