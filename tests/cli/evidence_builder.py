"""Builds the evidence of a small job: what happened, and each source's account of it, which tests can falsify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import uuid4

from rljob_cli.audit.evidence import Evidence, LedgerMessage, ManifestFile, PayloadLeft
from rljob_core.job_state import JobState, snapshot
from rljob_core.messages import RewardResult, StepMetrics
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    EpochClaimed,
    FedMicroBatch,
    FedTrajectory,
    Generated,
    GroupReady,
    GroupReserved,
    JobFinished,
    MicroBatchAssigned,
    PipelineSet,
    Record,
    RecordBatch,
    Rewarded,
    SpecInForce,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
    Writer,
)
from rljob_core.trajectory import VersionSpan, group_of, prompt_of_group

SIBLINGS = 2
BOUND = 1
JOB = "0123"
SPEC: dict[str, Any] = {
    "data": {"promptsPerStep": 2, "groupSize": 2, "seed": 1},
    "algorithm": {"scaleByStd": True},
    "reward": {"functions": ["exact_match"]},
}


@dataclass(frozen=True)
class Entry:
    """A message of the ledger: records, or a snapshot; `counts`: it is in the chain; `digest`: its chain digest."""

    writer: Writer
    records: tuple[Record, ...] = ()
    snapshot: bytes | None = None
    counts: bool = True
    digest: str = ""


@dataclass
class EvidenceBuilder:
    """Sources that can be changed one by one; `write` appends to the ledger under the writer in charge."""

    writer: Writer = field(default_factory=lambda: Writer(1, "one"))
    ledger: list[Entry] = field(default_factory=list)
    payloads: list[PayloadLeft] = field(default_factory=list)
    rewards: list[RewardResult] = field(default_factory=list)
    manifests: list[ManifestFile] = field(default_factory=list)
    fed: list[FedMicroBatch] = field(default_factory=list)
    metrics: list[StepMetrics] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    fence: tuple[int, int] = (0, 0)
    version: int = 0
    opened: int = 0
    stamp: tuple[str, int] = ("BoundedAsync", BOUND)
    assigned: list[tuple[str, ...]] = field(default_factory=list)
    stored: int = 0
    name: str = field(default_factory=lambda: uuid4().hex)

    def evidence(self) -> Evidence:
        """What an audit would read."""
        sequences = (n for n in count(1) if n not in self.lost)
        return Evidence(
            ledger=tuple(self._message(n, e) for n, e in zip(sequences, self.ledger, strict=False)),
            metrics=tuple(self.metrics),
            summary={"exit": "Succeeded" if self._has_ended() else "Running"},
            payloads=tuple(self.payloads),
            rewards=tuple(self.rewards),
            manifests=tuple(self.manifests),
            fed=tuple(self.fed),
            unreadable=tuple(self.unreadable),
            job=JOB,
        )

    def _has_ended(self) -> bool:
        ends = [
            isinstance(r, JobFinished) for r in self.records() if isinstance(r, JobFinished | VersionsRevoked)
        ]
        return bool(ends) and ends[-1]

    def _message(self, n: int, entry: Entry) -> LedgerMessage:
        batch = RecordBatch(entry.writer, entry.records) if entry.snapshot is None else None
        return LedgerMessage(n, batch, entry.snapshot, entry.counts, entry.digest, entry.digest)

    def write(self, *records: Record) -> None:
        """One message of the ledger."""
        self.ledger.append(Entry(self.writer, records, digest=self._digest()))

    def records(self) -> Iterator[Record]:
        """All records, in order."""
        return (record for entry in self.ledger for record in entry.records)

    def snapshot(self) -> None:
        """The ledger's state so far, as a coordinator stores it."""
        state = JobState()
        state.replay(RecordBatch(e.writer, e.records) for e in self.ledger if e.counts and e.records)
        self.ledger.append(Entry(self.writer, snapshot=snapshot.dump(state), digest=self._digest()))

    def _digest(self) -> str:
        self.stored += 1
        return f"c{self.stored}"

    # ---- what happens in a job

    def coordinator(self, number: int, instance: str, spec: dict[str, Any] | None = None) -> None:
        """A coordinator takes over; `spec`: None for that of the one before it."""
        before = [record.spec for record in self.records() if isinstance(record, SpecInForce)]
        self.claim(number, instance, SpecInForce(spec or before[-1]))

    def claim(self, number: int, instance: str, *specs: SpecInForce) -> None:
        """Somebody takes over, with or without a spec."""
        self.writer = Writer(number, instance)
        self.write(EpochClaimed(number, instance, JOB), *specs)

    def began_under(self, *specs: dict[str, Any]) -> None:
        """The first coordinator claimed under another spec, or several."""
        first = self.ledger[0]
        self.ledger[0] = replace(first, records=(first.records[0], *map(SpecInForce, specs)))

    def trainer(self, attempt: int) -> None:
        """A trainer gang starts from the newest version."""
        self.fence = (attempt, self.writer.number)
        self.assigned = []
        self.write(TrainerAttempt(attempt, self.writer.number, self.version))

    def pipeline(self, mode: str, bound: int) -> None:
        """What binds the buffers that open from here on."""
        self.stamp = (mode, bound)
        self.write(PipelineSet(self.opened, mode, bound, "Update", 3, 16, 0.75))

    def open(self, step: int, capacity: int = 2) -> None:
        """A step's buffer."""
        mode, bound = self.stamp
        self.opened = step + 1
        self.write(BufferOpened(step, bound, mode, capacity))

    def reserve(self, group: str, step: int) -> None:
        """A group is planned."""
        self.write(GroupReserved(group, int(group[1:]), SIBLINGS, step, max(step - BOUND, 0)))

    def generate(self, group: str, version: int, attempt: int = 1) -> None:
        """All siblings are generated by one version, and scored."""
        ids = members(group)
        self.write(Dispatched(ids, (attempt,) * len(ids), "engine", version))
        for trajectory in ids:
            digest, span = f"p-{trajectory}-{attempt}", VersionSpan(version, version)
            self.write(Generated(trajectory, attempt, span, 8, 4, digest, 1, 0))
            self.write(Rewarded(trajectory, attempt, 1.0, f"r-{trajectory}-{attempt}"))
            self.payloads.append(PayloadLeft(trajectory, attempt, digest, span, 1, 0))
            self.rewards.append(
                RewardResult(
                    trajectory, attempt, digest, 1.0, {"exact_match": 1.0}, f"r-{trajectory}-{attempt}"
                )
            )

    def ready(self, group: str, step: int, version: int) -> None:
        """Its entry is occupied."""
        self.write(GroupReady(group, step, version))

    def train(self, *groups: str, last: bool = False) -> None:
        """One micro-batch is assigned and fed."""
        attempt, epoch = self.fence
        number = len(self.assigned)
        self.write(MicroBatchAssigned(self.version, number, attempt, epoch, groups, last))
        ids = tuple(t for group in groups for t in members(group))
        self.assigned.append(ids)
        items = tuple(self.read(t) for t in ids)
        self.fed.append(FedMicroBatch(self.version, number, attempt, epoch, items))

    def read(self, trajectory: str) -> FedTrajectory:
        """What the trainer reads from the payload's header."""
        return self.fed_of([p for p in self.payloads if p.trajectory == trajectory][-1])

    @staticmethod
    def fed_of(payload: PayloadLeft | Generated) -> FedTrajectory:
        """What the trainer notes of a payload."""
        name, prompt = payload.trajectory, prompt_of_group(group_of(payload.trajectory))
        return FedTrajectory(name, payload.attempt, payload.digest, payload.span, prompt, 1.0, 0.0)

    def commit(self) -> None:
        """The step is done."""
        attempt, epoch = self.fence
        self.version += 1
        parent = self.manifest(self.version - 1).digest if self.version > 1 else ""
        key, digest = f"v{self.version}-a{attempt}", f"m-{self.version}-{attempt}-{epoch}"
        ledger = self.ledger[-1].digest
        record = StepCommitted(
            self.version, parent, attempt, epoch, tuple(self.assigned), BOUND, "random", digest, key, ledger
        )
        proposal = replace(record, manifest="")
        self.manifests.append(ManifestFile(key, self.version, parent, record.manifest, proposal))
        self.write(record)
        self.metrics.append(StepMetrics(self.version, self.version, 1.0, reward_mean=1.0))
        consumed = {t for batch in self.assigned for t in batch}
        self.payloads = [p for p in self.payloads if p.trajectory not in consumed]
        self.rewards = [r for r in self.rewards if r.trajectory not in consumed]
        self.assigned = []

    def manifest(self, version: int) -> ManifestFile:
        """Of the newest weights of that version."""
        return [m for m in self.manifests if m.version == version][-1]

    def lose(self, messages: int) -> None:
        """The server dies with its machine, and the ledger's newest messages with it."""
        del self.ledger[-messages:]

    def restore(
        self, version: int, moved: dict[str, int] | None = None, dropped: tuple[str, ...] = ()
    ) -> None:
        """A commit that the ledger has lost is taken back from its manifest."""
        manifest = self.manifest(version)
        assert manifest.proposal is not None
        self.version = version
        self.write(StepRestored(replace(manifest.proposal, manifest=manifest.digest), moved or {}, dropped))

    def revoke(self, version: int) -> None:
        """The user goes back."""
        later = [r for r in self.records() if isinstance(r, StepCommitted) and r.version > version]
        manifest = self.manifest(version)
        trajectories = sum(len(batch) for r in later for batch in r.micro_batches)
        self.write(VersionsRevoked(version, manifest.key, manifest.digest, None, None, trajectories))
        self.version = self.opened = version
        self.assigned = []

    def finish(self) -> None:
        """The job has succeeded."""
        self.write(JobFinished())

    # ---- what a test changes

    def rewrite(self, change: Callable[[Record], Record | None]) -> None:
        """Put every record of the ledger through a function; None takes it out."""
        self.ledger = [
            replace(e, records=tuple(new for record in e.records if (new := change(record)) is not None))
            for e in self.ledger
        ]

    def alter(self, kind: type, where: Callable[[Any], bool], **changes: Any) -> None:
        """Change fields of the records of a kind; at least one must be there."""
        found = [r for r in self.records() if isinstance(r, kind) and where(r)]
        assert found
        self.rewrite(lambda r: replace(r, **changes) if any(r is one for one in found) else r)


def members(group: str) -> tuple[str, ...]:
    """Ids of a group's trajectories."""
    return tuple(f"{group}.{n}" for n in range(SIBLINGS))


def job() -> EvidenceBuilder:
    """Three steps of two groups each, in two micro-batches, with a group in the making; not finished yet.

    Groups g0 … g5 are trained in order; g4 is generated by version 1 and so has staleness 1 in step 2; g6 is open.
    """
    evidence_builder = EvidenceBuilder()
    evidence_builder.coordinator(1, "one", SPEC)
    evidence_builder.snapshot()
    evidence_builder.trainer(1)
    evidence_builder.pipeline("BoundedAsync", BOUND)
    plan(evidence_builder, 0)
    plan(evidence_builder, 1)
    for number in range(6):
        version = max(number // 2 - 1, 0) if number % 2 == 0 else number // 2
        evidence_builder.generate(f"g{number}", version)
        evidence_builder.ready(f"g{number}", number // 2, version)
        evidence_builder.train(f"g{number}", last=number % 2 == 1)
        if number % 2 == 1:
            evidence_builder.commit()
            if evidence_builder.version == 1:
                plan(evidence_builder, 2)
    evidence_builder.open(3)
    evidence_builder.reserve("g6", 3)
    evidence_builder.generate("g6", 3)
    return evidence_builder


def plan(evidence_builder: EvidenceBuilder, step: int, *, first: int | None = None) -> None:
    """A step's buffer, and both of its groups."""
    evidence_builder.open(step)
    first = 2 * step if first is None else first
    for number in (first, first + 1):
        evidence_builder.reserve(f"g{number}", step)


def train_step(evidence_builder: EvidenceBuilder, *groups: str) -> None:
    """The groups of the current step are generated by its version and trained, one by one."""
    for group in groups:
        evidence_builder.generate(group, evidence_builder.version)
        evidence_builder.ready(group, evidence_builder.version, evidence_builder.version)
        evidence_builder.train(group, last=group == groups[-1])
    evidence_builder.commit()


def refuted(checks: Iterable[Any]) -> dict[str, set[str]]:
    """Names of the checks that do not hold, with all ids that they name."""
    return {c.name: {i for v in c.violations for i in v.ids} for c in checks if not c.holds}


def of(group: str) -> Callable[[Any], bool]:
    """Whether a record is about a trajectory of this group."""
    return lambda record: group_of(record.trajectory) == group
