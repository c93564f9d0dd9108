"""Going back to an earlier version at the user's request: every later version is revoked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_core.actions import PublishMetrics
from rljob_core.planner import training
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.metrics_line import metrics_line
from rljob_core.records import CheckpointSaved, StepCommitted, VersionsRevoked


def revoke(
    context: PlannerContext,
    version: int,
    *,
    chain: Sequence[StepCommitted],
    checkpoint: CheckpointSaved | None,
) -> None:
    """Revoke all versions after `version` and announce it to the engines, right after the epoch was claimed.

    Nothing is planned here: the next coordinator continues from `version`, with the next prompts.

    Args:
        chain: commits of versions 1, 2, … up to the ledger's newest.
        checkpoint: the optimizer state to continue with, of `version` or an earlier one; None for a fresh state.
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
    context.act(PublishMetrics(replace(metrics_line(context), gone_back=True)))
