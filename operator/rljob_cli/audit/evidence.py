"""What an audit reads, and what it says: frozen, without any I/O.

The sources do not trust one another. The coordinator writes the ledger; engines write payloads, whose headers the
trainer reads by itself; the trainer writes manifests and its own log; reward workers write the reward stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljob_core.messages import RewardResult
from rljob_core.records import FedMicroBatch, RecordBatch, StepCommitted
from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class LedgerMessage:
    """One message of the ledger: records, or a snapshot; neither, if it is a snapshot's part or does not read.

    Attributes:
        batch: records and their writer.
        snapshot: of the state that the records before it lead to, all its parts joined.
        counts: it was appended to the message that it names as the one before it (`messaging.ledger.Chain`).
    """

    sequence: int
    batch: RecordBatch | None = None
    snapshot: bytes | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class PayloadLeft:
    """A payload still in the trajectory stream, as its own header says.

    Attributes:
        sequence, index: its message, and its place in it.
        intact: its bytes match its digest.
    """

    trajectory: str
    attempt: int
    digest: str
    span: VersionSpan
    sequence: int
    index: int
    intact: bool = True


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A version's manifest in the weight store; `intact`: it matches its own digest."""

    key: str
    version: int
    parent: str
    digest: str
    proposal: StepCommitted | None
    intact: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything there is about a job.

    Attributes:
        ledger: all messages, in order.
        payloads: what is left in the trajectory stream.
        rewards: what is left in the reward stream.
        manifests: of the weight store.
        fed: the trainer's own log, attempt by attempt, each in the order of its lines.
        unreadable: what could not be read, and why.
        job: UID of the job whose ledger it must be; "" if nobody knows.
    """

    ledger: tuple[LedgerMessage, ...]
    payloads: tuple[PayloadLeft, ...] = ()
    rewards: tuple[RewardResult, ...] = ()
    manifests: tuple[ManifestFile, ...] = ()
    fed: tuple[FedMicroBatch, ...] = ()
    unreadable: tuple[str, ...] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be.

    Attributes:
        ids: of trajectories, groups, versions or messages, as the sources name them.
        text: what is wrong with them.
    """

    ids: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One claim, how many things it was checked on, and what refutes it."""

    name: str
    claim: str
    examined: int
    violations: tuple[Violation, ...]

    @property
    def holds(self) -> bool:
        """Nothing refutes it."""
        return not self.violations


@dataclass(frozen=True, slots=True)
class Findings:
    """What an audit says.

    Attributes:
        checks: all of them.
        counts: of trajectories by how they ended, and of what was read.
    """

    checks: tuple[AuditCheck, ...]
    counts: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Every claim holds."""
        return all(check.holds for check in self.checks)
