"""The audit's evidence, with everything that is derived from it once for all checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_cli.audit import lost_commits
from rljob_cli.audit.evidence import Evidence, ManifestFile, Violation
from rljob_cli.audit.history import History
from rljob_cli.audit.ledger_items import Committed, Consumed
from rljob_core.records import FedMicroBatch, FedTrajectory

CheckOutcome = tuple[int, list[Violation]]
"""The result of a check: how many items it examined, and the violations that it found."""


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """The evidence, and what the checks derive from it.

    Attributes:
        evidence: all that the audit has read.
        history: the ledger's account of the job.
        starts: per committed version, the micro-batches that the trainer logged under the `(attempt, epoch)` whose
            commit counts: one list for each time that the step was started.
        revoked: (step, trajectory) of everything that the trainer logged for versions that were revoked later.
        open_step: what the trainer logged for the step after the newest version, which is not committed.
        bounds: the staleness bounds that the open step can have; empty if they are unknown.
        chain: manifests of the committed versions, found from the newest one backwards by parent digests alone.
    """

    evidence: Evidence
    history: History
    starts: dict[int, list[list[FedMicroBatch]]]
    revoked: list[tuple[int, str]]
    open_step: list[FedTrajectory]
    bounds: set[int]
    chain: list[ManifestFile]

    @classmethod
    def of(cls, evidence: Evidence) -> AuditedRun:
        """Derive everything that the checks need from the evidence."""
        history = History.read(evidence.ledger)
        lost_commits.complete(history, evidence)
        lines: dict[tuple[int, int, int], list[FedMicroBatch]] = {}
        for line in evidence.fed:
            lines.setdefault((line.step, line.attempt, line.epoch), []).append(line)
        starts = {c.record.version: _starts(c, lines) for c in history.commits}
        revoked = [
            (batch.step, item.trajectory)
            for commit in history.revoked
            for batch in next(reversed(_starts(commit, lines)), [])
            for item in batch.items
        ]
        step, epoch = history.version, history.records.writer.number
        newest = [line for line in evidence.fed if line.step == step and line.epoch >= epoch]
        open_step = [item for line in newest for item in line.items] if not evidence.growing else []
        bounds = lost_commits.known_bounds(history, evidence, step)
        return cls(evidence, history, starts, revoked, open_step, bounds, _chain(evidence.manifests, history))

    def fed(self, version: int) -> list[FedMicroBatch]:
        """Return the micro-batches that the trainer logged since the version's step last started; [] if it has none."""
        return self.starts[version][-1] if self.starts[version] else []

    @property
    def consumed(self) -> Iterator[Consumed]:
        """All trained trajectories according to the ledger."""
        return (consumed for commit in self.history.commits for consumed in commit.consumed)

    @property
    def fed_items(self) -> Iterator[tuple[int, FedTrajectory]]:
        """All trained trajectories according to the trainer's own log, each with its step."""
        return ((b.step, item) for version in self.starts for b in self.fed(version) for item in b.items)


def _starts(
    commit: Committed, lines: dict[tuple[int, int, int], list[FedMicroBatch]]
) -> list[list[FedMicroBatch]]:
    record = commit.record
    starts = _split(lines.get((record.version - 1, record.attempt, record.epoch), []))
    if commit.restored:
        # The step may have started again after the restored proposal was written, and the ledger no longer shows which
        # start counts: move the start that matches the restored commit to the end.
        matching = [
            s
            for s in starts
            if tuple(tuple(i.trajectory for i in b.items) for b in s) == record.micro_batches
        ]
        return [*(s for s in starts if s not in matching), *matching]
    return starts


def _split(lines: Iterable[FedMicroBatch]) -> list[list[FedMicroBatch]]:
    starts: list[list[FedMicroBatch]] = []
    for line in lines:
        if line.micro_batch == 0 or not starts:
            starts.append([])
        starts[-1].append(line)
    return starts


def _chain(manifests: Iterable[ManifestFile], history: History) -> list[ManifestFile]:
    by_digest = {manifest.digest: manifest for manifest in manifests}
    chain: list[ManifestFile] = []
    digest = history.commits[-1].record.manifest if history.commits else ""
    while (manifest := by_digest.pop(digest, None)) is not None:
        chain.append(manifest)
        digest = manifest.parent
    return chain[::-1]
