"""What a trainer does with a micro-batch before it trains on it: read the payloads, check the bound, log them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rljob_core.errors import StalenessExceeded
from rljob_core.messages import MicroBatch, PayloadMissing, TrainingItem
from rljob_core.ports import MessageStore, TrainingSample
from rljob_core.records import FED, FedMicroBatch, FedTrajectory
from rljob_core.trajectory import Trajectory
from rljob_runtime.messaging.trajectories import Location, TrajectoryStore
from rljob_runtime.process.fsync import create_folder, sync_file, sync_folder


class MicroBatchReader:
    """Reads the trajectories of micro-batches.

    Args:
        store: the job's streams, open.
        max_tokens: of a response.
    """

    def __init__(self, store: MessageStore, *, max_tokens: int) -> None:
        self._trajectories = TrajectoryStore(store, max_tokens=max_tokens)

    async def read(self, work: MicroBatch) -> list[TrainingSample] | PayloadMissing:
        """The samples of a micro-batch, in order; or which of its trajectories are not stored as the ledger says."""
        found = await self._trajectories.get([Location(i.sequence, i.index, i.digest) for i in work.items])
        missing = tuple(i.trajectory for i, t in zip(work.items, found, strict=True) if not _matches(i, t))
        if missing:
            return PayloadMissing(work.attempt, work.epoch, work.step, missing)
        return [TrainingSample(i, t) for i, t in zip(work.items, found, strict=True) if t is not None]


def _matches(item: TrainingItem, trajectory: Trajectory | None) -> bool:
    return trajectory is not None and (trajectory.id, trajectory.attempt) == (item.trajectory, item.attempt)


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


class ConsumedLog:
    """The trainer's own log of the trajectories that it trains on, which `rljob audit` compares with the ledger.

    One file per attempt, `attempt-<n>.jsonl`, with one line per micro-batch.

    Args:
        folder: created if it does not exist.
        attempt: of the trainer.
    """

    def __init__(self, folder: Path, *, attempt: int) -> None:
        create_folder(folder)
        self._path = folder / f"attempt-{attempt}.jsonl"
        self._is_named = False  # whether the folder durably has the file's name
        self._cut_incomplete_line()

    def append(self, work: MicroBatch, samples: Sequence[TrainingSample]) -> None:
        """Log a micro-batch; call it before the backward pass."""
        fed = tuple(
            FedTrajectory(
                s.trajectory.id,
                s.trajectory.attempt,
                s.item.digest,
                s.trajectory.span,
                s.trajectory.prompt,
                s.item.reward,
                s.item.advantage,
            )
            for s in samples
        )
        line = FED.dump_json(FedMicroBatch(work.step, work.micro_batch, work.attempt, work.epoch, fed))
        # Open and close the file for each line, so that no line is left in a buffer when the role is killed.
        with self._path.open("ab") as file:
            file.write(line + b"\n")

    def sync(self) -> None:
        """Make all lines survive a crash of the machine; call it before the step that they are of is proposed.

        Otherwise the step could be committed, and be there after the crash, while the log of it is not.
        """
        sync_file(self._path)
        if not self._is_named:
            sync_folder(self._path.parent)
            self._is_named = True

    def _cut_incomplete_line(self) -> None:
        """Remove a line that a crash of the machine has cut off.

        An attempt has the number of an earlier one if the crash has also lost the operator's newest status.
        """
        if self._path.exists():
            complete = self._path.read_bytes().rpartition(b"\n")
            os.truncate(self._path, len(complete[0]) + len(complete[1]))
