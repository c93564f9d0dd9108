"""The check that engines were told of versions that the ledger has, by coordinators that it knows.

The newest announcement is left. It may be older than the ledger's newest version, where a coordinator has died between
the record and the announcement, but never ahead of the ledger: a version is announced once its commit is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_cli.audit.evidence import Evidence, Verdict, Violation, damage
from rljob_cli.audit.history import History
from rljob_core.messages import VersionAnnounced
from rljob_core.records import StepCommitted


def announced(history: History, evidence: Evidence) -> Iterator[Violation]:
    """Say which announcements are of no version of the ledger, or of no coordinator of its."""
    if evidence.live:  # the announcements were read after the ledger
        return
    commits = {commit.record.version: commit.record for commit in history.commits}
    revoked = {commit.record.manifest for commit in history.revoked}
    claimed = {claim.number for _, claim in history.records.claims}
    for said in evidence.announced:
        name = (f"version {said.version}",)
        if said.epoch not in claimed:
            yield _beyond(
                name, f"was announced by the writer epoch {said.epoch}, which the ledger lacks", history
            )
        if said.version > history.version and said.manifest not in revoked:
            if history.finished is None:
                yield damage(name, "was announced, but neither ledger nor manifests have it")
            else:
                yield Violation(name, f"was announced, but the job ended at version {history.version}")
        elif said.version <= history.version and not _is_of(said, commits, revoked, evidence):
            yield Violation(
                name,
                f"was announced with the manifest {said.manifest[:12] or 'of none'}, which is another one",
            )


def _is_of(
    said: VersionAnnounced, commits: dict[int, StepCommitted], revoked: set[str], evidence: Evidence
) -> bool:
    """Whether an announcement names the ledger's manifest, or that of a version that was revoked or begun again."""
    known = commits.get(said.version)
    if (said.key, said.manifest) == ((known.key, known.manifest) if known is not None else (None, "")):
        return True
    left = {file.digest for file in evidence.manifests if file.version == said.version}
    current = known.manifest if known is not None else ""
    return said.manifest in revoked or (said.manifest in left and said.manifest != current)


def _beyond(name: tuple[str, ...], text: str, history: History) -> Violation:
    """What the ledger can only have lost with its end."""
    if history.finished is not None:
        return Violation(name, text)
    return Violation(name, f"{text}: `rljob run --resume` goes on from what is left", Verdict.UNFINISHED)
