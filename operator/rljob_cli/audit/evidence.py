"""The audit's input (evidence) and output (findings) as frozen dataclasses, without any I/O.

The sources do not trust one another. The coordinator writes the ledger; engines write payloads, whose headers the
trainer reads by itself; the trainer writes manifests and its own log; reward workers write the reward stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_core.messages import RewardResult, StepMetrics, VersionAnnounced
from rljob_core.records import FedMicroBatch, RecordBatch, StepCommitted
from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class LedgerMessage:
    """One message of the ledger: records or a snapshot, or neither if it is a snapshot's part or cannot be decoded.

    Attributes:
        sequence: its sequence in the ledger's stream.
        batch: records and their writer.
        snapshot: snapshot of the state after all earlier records, with all its parts joined.
        counts: whether it was appended to the message that it names as its predecessor (`messaging.ledger.Chain`).
        digest: the chain digest in its header; "" if it has none.
        expected_digest: the chain digest that follows from its content and the digest of the message before it.
    """

    sequence: int
    batch: RecordBatch | None = None
    snapshot: bytes | None = None
    counts: bool = True
    digest: str = ""
    expected_digest: str = ""


@dataclass(frozen=True, slots=True)
class PayloadLeft:
    """A payload that is still in the trajectory stream, as its own header describes it.

    Attributes:
        sequence: sequence of its message.
        index: its position among the payloads of that message.
        prompt: index of its prompt, by its header; None if it is not known.
        intact: whether its bytes match its digest.
    """

    trajectory: str
    attempt: int
    digest: str
    span: VersionSpan
    sequence: int
    index: int
    intact: bool = True
    prompt: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A version's manifest in the weight store; `intact` is whether it matches its own digest."""

    key: str
    version: int
    parent: str
    digest: str
    proposal: StepCommitted | None
    intact: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the audit has read about a job.

    Attributes:
        ledger: all messages of the ledger, in order.
        payloads: the payloads that are left in the trajectory stream.
        rewards: the results that are left in the reward stream.
        manifests: all manifests in the weight store.
        fed: the trainer's own log, attempt by attempt, in the order of its lines.
        unreadable: one message for each thing that could not be read.
        job: UID of the job that the ledger must belong to; "" if it is unknown.
        announced: what was announced to the engines and is stored, the newest last.
        metrics, metrics_file: lines of the metrics stream and of metrics.jsonl that the user has not gone back from.
        summary: the content of summary.json; None if there is none.
        user_spec: `spec` in job.json or in the cluster's configuration, with defaults filled in; None if unknown.
        patched: paths in the spec that `rljob patch` has changed since the last `rljob run`.
        spec_may_be_ahead: `user_spec` is that of the cluster, which does not tell when it was changed last.
        pipeline_refused: why the newest `spec.pipeline` is not in force; "" if it is.
        worker_specs: (pod, spec) of each worker's configuration.
        growing: the ledger grew while the other sources were read, which may therefore be ahead of it.
        streams_only: neither the weights' manifests nor the trainer's log could be read from here.
        in_use: a run of the job is at work in the folder, so that its files may be ahead of the ledger, or behind it.
    """

    ledger: tuple[LedgerMessage, ...]
    payloads: tuple[PayloadLeft, ...] = ()
    rewards: tuple[RewardResult, ...] = ()
    manifests: tuple[ManifestFile, ...] = ()
    fed: tuple[FedMicroBatch, ...] = ()
    unreadable: tuple[str, ...] = ()
    job: str = ""
    announced: tuple[VersionAnnounced, ...] = ()
    metrics: tuple[StepMetrics, ...] = ()
    metrics_file: tuple[StepMetrics, ...] = ()
    summary: dict[str, Any] | None = None
    user_spec: dict[str, Any] | None = None
    patched: tuple[str, ...] = ()
    spec_may_be_ahead: bool = False
    pipeline_refused: str = ""
    worker_specs: tuple[tuple[str, dict[str, Any]], ...] = ()
    growing: bool = False
    streams_only: bool = False
    in_use: bool = False

    @property
    def live(self) -> bool:
        """Whether other sources may be ahead of the ledger as it was read, because the job runs."""
        return self.growing or self.in_use


class Verdict(StrEnum):
    """What the audit concludes, from the best to the worst.

    | verdict | says |
    |---|---|
    | holds | every claim holds |
    | unfinished | no claim is broken, but the ledger lost records that only `rljob run --resume` restores |
    | damaged | evidence is missing, altered or unreadable, so that not every claim can be decided |
    | violated | evidence shows that a claim is broken |
    """

    HOLDS = "holds"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class Violation:
    """One case in which a claim does not hold.

    Attributes:
        ids: the trajectories, groups, versions or messages concerned, as the sources name them.
        text: what is wrong with them.
        verdict: what follows from it.
    """

    ids: tuple[str, ...]
    text: str
    verdict: Verdict = Verdict.VIOLATED


def damage(ids: tuple[str, ...], text: str) -> Violation:
    """Evidence that is missing, altered or unreadable."""
    return Violation(ids, text, Verdict.DAMAGED)


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """The result of checking one claim.

    Attributes:
        name: the check's name.
        claim: what must hold.
        examined: how many items the claim was checked on.
        violations: the cases in which it does not hold.
    """

    name: str
    claim: str
    examined: int
    violations: tuple[Violation, ...]

    @property
    def holds(self) -> bool:
        """Whether the check found no violation."""
        return not self.violations


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of an audit.

    Attributes:
        checks: the results of all checks.
        counts: numbers of trajectories by how they ended, and of everything that the audit has read.
        unchecked: claims that could not be checked from here, because they need the job's storage.
    """

    checks: tuple[AuditCheck, ...]
    counts: dict[str, Any]
    unchecked: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return self.verdict is Verdict.HOLDS

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any violation."""
        found = {violation.verdict for check in self.checks for violation in check.violations}
        return next((v for v in reversed(Verdict) if v in found), Verdict.HOLDS)
