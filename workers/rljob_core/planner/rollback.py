"""The user goes back to an earlier version: what came after it does not count any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_core.actions import PublishMetrics
from rljob_core.planner import training
from rljob_core.planner.context import PlannerContext
from rljob_core.records import CheckpointSaved, StepCommitted, VersionsRevoked


def revoke(
    context: PlannerContext,
    version: int,
    *,
    chain: Sequence[StepCommitted],
    checkpoint: CheckpointSaved | None,
) -> None:
    """Revoke all versions after `version` and tell engines of it, right after the epoch was claimed.

    Nothing is planned yet: whoever takes over as coordinator goes on from here, with the next prompts.

    Args:
        chain: commits of versions 1, 2, … up to the ledger's newest.
        checkpoint: of this version or one before it; None for fresh optimizer state.
    """
    target = chain[version - 1] if version else None
    revoked = VersionsRevoked(
        version=version,
        key=target.key if target is not None else None,
        manifest=target.manifest if target is not None else "",
        checkpoint=checkpoint.key if checkpoint is not None else None,
        checkpoint_version=checkpoint.version if checkpoint is not None else None,
        trajectories=sum(len(part) for commit in chain[version:] for part in commit.micro_batches),
    )
    context.emit(revoked)
    training.announce(context)
    context.act(PublishMetrics(replace(context.metrics_line(), gone_back=True)))
