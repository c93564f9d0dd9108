"""What a trainer does with a micro-batch before it trains on it: read the payloads, check the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rljob_core.errors import StalenessExceeded
from rljob_core.messages import MicroBatch, PayloadMissing, TrainingItem
from rljob_core.ports import MessageStore, TrainingSample
from rljob_core.trajectory import FinishReason, Trajectory
from rljob_runtime.messaging.trajectories import Location, TrajectoryStore


class MicroBatchReader:
    """Reads the trajectories of micro-batches.

    Args:
        store: the job's streams, open.
        max_tokens: of a response.
        masks_truncated: whether no token of a response that was cut off is trained on.
    """

    def __init__(self, store: MessageStore, *, max_tokens: int, masks_truncated: bool = False) -> None:
        self._trajectories = TrajectoryStore(store, max_tokens=max_tokens)
        self._masks_truncated = masks_truncated

    async def read(self, work: MicroBatch) -> list[TrainingSample] | PayloadMissing:
        """The samples of a micro-batch, in order; or which of its trajectories are not stored as the ledger says."""
        found = await self._trajectories.get([Location(i.sequence, i.index, i.digest) for i in work.items])
        missing = tuple(i.trajectory for i, t in zip(work.items, found, strict=True) if not _matches(i, t))
        if missing:
            return PayloadMissing(work.attempt, work.epoch, work.step, missing)
        return [
            TrainingSample(item, masked(trajectory) if self._masks_truncated else trajectory)
            for item, trajectory in zip(work.items, found, strict=True)
            if trajectory is not None
        ]


def _matches(item: TrainingItem, trajectory: Trajectory | None) -> bool:
    return trajectory is not None and (trajectory.id, trajectory.attempt) == (item.trajectory, item.attempt)


def masked(trajectory: Trajectory) -> Trajectory:
    """The trajectory, without any token to train on if it was cut off."""
    if trajectory.finish is not FinishReason.LENGTH:
        return trajectory
    segments = [replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in trajectory.segments]
    return replace(trajectory, segments=segments)


def check_staleness(work: MicroBatch, samples: Sequence[TrainingSample]) -> None:
    """Check that the tokens of each payload are of versions that exist at its step and are within its bound.

    A label of a later version would hide how old a token is.

    Raises:
        StalenessExceeded: a sample's oldest token is from a version too far before the step's, or a token has the label
            of a version that does not exist yet.
    """
    for sample in samples:
        span = sample.trajectory.span
        if not 0 <= span.min <= span.max <= work.step:
            raise StalenessExceeded(
                f"{sample.trajectory.id}: its tokens have the labels of versions {span.min} to {span.max}, "
                f"but step {work.step} starts from version {work.step}: its staleness is unknown"
            )
        staleness = work.step - span.min
        if staleness > work.max_staleness:
            raise StalenessExceeded(
                f"{sample.trajectory.id}: staleness {staleness} exceeds the bound {work.max_staleness} "
                f"of step {work.step}"
            )
