"""The audit's evidence, with everything that is derived from it once for all checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_cli.audit.account import Committed, Consumed
from rljob_cli.audit.evidence import Evidence, ManifestFile, Violation
from rljob_cli.audit.history import History
from rljob_core.records import FedMicroBatch, FedTrajectory

Refuted = tuple[int, list[Violation]]
"""How many things a claim was checked on, and what refutes it."""


@dataclass(frozen=True, slots=True)
class Case:
    """The evidence, and what follows from it.

    Attributes:
        starts: per committed version, what the trainer says that it fed under the `(attempt, epoch)` whose commit
            counts; more than one list where the step started over.
        revoked: step and trajectory of all that the trainer says that it fed to versions that were revoked.
        chain: manifests of the committed versions, found backwards from the newest by parent digests alone.
    """

    evidence: Evidence
    history: History
    starts: dict[int, list[list[FedMicroBatch]]]
    revoked: list[tuple[int, str]]
    chain: list[ManifestFile]

    @classmethod
    def of(cls, evidence: Evidence) -> Case:
        """The case for this evidence."""
        history = History.read(evidence.ledger)
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
        return cls(evidence, history, starts, revoked, _chain(evidence.manifests, history))

    def fed(self, version: int) -> list[FedMicroBatch]:
        """What the trainer fed for a version since its step last started; nothing if its log is silent."""
        return self.starts[version][-1] if self.starts[version] else []

    @property
    def consumed(self) -> Iterator[Consumed]:
        """All that was trained, by the ledger."""
        return (consumed for commit in self.history.commits for consumed in commit.consumed)

    @property
    def fed_items(self) -> Iterator[tuple[int, FedTrajectory]]:
        """Step and trajectory: all that was trained, by the trainer's own log."""
        return ((b.step, item) for version in self.starts for b in self.fed(version) for item in b.items)


def _starts(
    commit: Committed, lines: dict[tuple[int, int, int], list[FedMicroBatch]]
) -> list[list[FedMicroBatch]]:
    record = commit.record
    starts = _split(lines.get((record.version - 1, record.attempt, record.epoch), []))
    if commit.restored:
        # Its step may have started over after the proposal that was taken back: the ledger had lost which counts.
        taken = [
            s
            for s in starts
            if tuple(tuple(i.trajectory for i in b.items) for b in s) == record.micro_batches
        ]
        return [*(s for s in starts if s not in taken), *taken]
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
