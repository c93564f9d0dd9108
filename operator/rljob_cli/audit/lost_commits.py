"""Commits that the ledger lacks, though other evidence proves them: the ledger has lost its end, or was cut by someone.

A version was committed if another version starts from its manifest, if it was announced to the engines, or if the
trainer began the step after it: the coordinator lets each of these happen only once the commit's record is
acknowledged. A manifest of which nothing of this is known may be of a step that was never committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rljob_cli.audit.evidence import Evidence, Violation, damage
from rljob_cli.audit.history import History
from rljob_core.records import EPOCH_STRIDE, StepCommitted
from rljob_core.spec import PipelineSpec


def reach(history: History, evidence: Evidence) -> int:
    """Return the version from which the trainer began its newest step, by its own log.

    Lines of coordinators before the ledger's last one do not count: their steps may have been revoked, or withdrawn.
    """
    epoch = history.records.writer.number
    return max((line.step for line in evidence.fed if line.epoch >= epoch), default=0)


def lost_commits(history: History, evidence: Evidence) -> list[StepCommitted]:
    """Return the proven commits that follow the ledger's last one, in order; [] while a coordinator is writing."""
    if evidence.growing:
        return []
    revoked = {commit.record.manifest for commit in history.revoked}
    successors: dict[str, list[StepCommitted]] = {}
    for file in evidence.manifests:
        if file.proposal is not None and file.digest not in revoked:
            successors.setdefault(file.parent, []).append(replace(file.proposal, manifest=file.digest))
    begun = reach(history, evidence)
    announcements = {announced.manifest for announced in evidence.announced}

    def rank(commit: StepCommitted) -> tuple[bool, bool, int, int]:
        announced = commit.manifest in announcements
        return (
            commit.manifest in successors or announced,
            announced,
            commit.epoch // EPOCH_STRIDE,
            commit.attempt,
        )

    found: list[StepCommitted] = []
    version, manifest = history.version, history.commits[-1].record.manifest if history.commits else ""
    while candidates := [c for c in successors.pop(manifest, ()) if c.version == version + 1]:
        commit = max(candidates, key=rank)
        if not rank(commit)[0] and commit.version > begun:
            break
        found.append(commit)
        version, manifest = commit.version, commit.manifest
    return found


def complete(history: History, evidence: Evidence) -> None:
    """Add the proven commits that the ledger lacks to the history, so that all checks see what they consumed."""
    for commit in lost_commits(history, evidence):
        bounds = known_bounds(history, evidence, commit.version - 1)
        if bounds and commit.max_staleness not in bounds:
            text = f"was committed under the bound {commit.max_staleness}, but {_either(bounds)} was in force"
            history.misplaced.append(Violation((f"version {commit.version}",), text))
        history.extend(commit)
    history.incomplete += _lost_commits(history, evidence)


def known_bounds(history: History, evidence: Evidence, step: int) -> set[int]:
    """Return the bounds that the buffer of a step after the ledger's end can have; empty if they are unknown.

    If the ledger has no such buffer, that is the ledger's newest bound, or the user's, who may have changed it since.
    """
    if step in history.buffers:
        return {history.buffers[step].max_staleness}
    if not history.pipelines.settings or any(path.startswith("pipeline") for path in evidence.patched):
        return set()
    bounds = {history.pipelines.settings[-1].max_staleness}
    if evidence.user_spec is not None:
        bounds.add(PipelineSpec.model_validate(evidence.user_spec["pipeline"]).bound)
    return bounds


def _either(bounds: set[int]) -> str:
    return " or ".join(map(str, sorted(bounds)))


def _lost_commits(history: History, evidence: Evidence) -> Iterator[Violation]:
    """Say what the ledger lacks, and whether that can be restored."""
    lost = {
        c.record.manifest: c.record.version for c in history.commits[len(history.commits) - history.lost :]
    }
    if evidence.growing:
        return
    names = tuple(f"version {version}" for version in lost.values())
    if lost:
        text = "were committed, by their manifests, but the ledger ended the job before"
        later = "were committed, but the ledger has lost it: `rljob run --resume` restores them from their manifests"
        yield history.beyond_end(names, text, later)
    for message in evidence.ledger:
        for record in message.batch.records if message.batch is not None else ():
            if isinstance(record, StepCommitted) and record.manifest in lost:
                text = f"does not count, but commits version {record.version}, which is proven: the ledger was altered"
                yield damage((f"message {message.sequence}",), text)
    if (begun := reach(history, evidence)) > history.version:
        text = f"was begun, by the trainer's log, but neither ledger nor manifests have version {begun}"
        yield damage((f"step {begun}",), text)
