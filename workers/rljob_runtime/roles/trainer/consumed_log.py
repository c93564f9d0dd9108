"""The trainer's own log of the trajectories that it trains on, which `rljob audit` compares with the ledger.

One line per micro-batch: in a folder a file per attempt, `attempt-<n>.jsonl`, that grows; in an object store an object
per step (`rljob_runtime.storage.trainer_log`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from rljob_core.messages import MicroBatch
from rljob_core.ports import TrainingSample
from rljob_core.records import FED, FedMicroBatch, FedTrajectory
from rljob_runtime.locations import local_path
from rljob_runtime.process.fsync import create_folder, sync_file, sync_folder
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.trainer_log import TrainerLogObjects


class ConsumedLog(ABC):
    """What one attempt of the trainer trains on."""

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
        self._append(line + b"\n")

    @abstractmethod
    def _append(self, line: bytes) -> None:
        """Add a line."""

    @abstractmethod
    def sync(self) -> None:
        """Make all lines survive a crash of the machine; call it before the step that they are of is proposed.

        Otherwise the step could be committed, and be there after the crash, while the log of it is not.

        Raises:
            StorageRefused, OSError: the storage does not take them.
        """


class FolderConsumedLog(ConsumedLog):
    """The log in a folder.

    Args:
        folder: created if it does not exist.
        attempt: of the trainer.
    """

    def __init__(self, folder: Path, *, attempt: int) -> None:
        create_folder(folder)
        self._path = folder / f"attempt-{attempt}.jsonl"
        self._is_named = False  # whether the folder durably has the file's name
        self._cut_incomplete_line()

    def _append(self, line: bytes) -> None:
        # Open and close the file for each line, so that no line is left in a buffer when the role is killed.
        with self._path.open("ab") as file:
            file.write(line)

    def sync(self) -> None:
        """Sync the file."""
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


class ObjectConsumedLog(ConsumedLog):
    """The log in an object store: what was logged since the last `sync` is one object, written by the next.

    Args:
        objects: of the job.
        attempt: of the trainer; it may have the number of an earlier one, see `FolderConsumedLog`.
    """

    def __init__(self, objects: TrainerLogObjects, *, attempt: int) -> None:
        self._objects, self._attempt = objects, attempt
        self._number = max(objects.numbers().get(attempt, [0]))
        self._lines: list[bytes] = []

    def _append(self, line: bytes) -> None:
        self._lines.append(line)

    def sync(self) -> None:
        """Put the object: durable when the store has acknowledged it."""
        if self._lines:
            self._objects.put(self._attempt, self._number + 1, b"".join(self._lines))
            self._number += 1
            self._lines = []


def open_consumed_log(uri: str, *, attempt: int) -> ConsumedLog:
    """Open the log at a path or URI (`file://`, `s3://`, `gs://`) for an attempt of the trainer.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
        StoreUnavailable: the object store does not answer.
    """
    if is_object_store(uri):
        return ObjectConsumedLog(TrainerLogObjects(uri), attempt=attempt)
    return FolderConsumedLog(local_path(uri), attempt=attempt)
