"""One rank's backend whose checkpoints are in an object store: it writes them to, and loads them from, local scratch.

The scratch folder is below `TMPDIR`, and has the size of what this rank saves. When a checkpoint is loaded, the ranks
of one pod share one copy, which the first of them downloads.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rljob_core.errors import CheckpointDamaged
from rljob_core.messages import StepStats
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_runtime.training.checkpoint_objects import download_checkpoint, upload_part

_SCRATCH = "rljob-checkpoint-"


class ObjectStateBackend:
    """A backend that saves to URIs of an object store; all else is the given backend's.

    Args:
        own: this rank's backend, which knows folders only.
        rank: this rank, from 0.
        barrier: returns once all ranks have called it.
    """

    def __init__(self, own: TrainerBackend, *, rank: int, barrier: Callable[[], None] = lambda: None) -> None:
        self._own, self._rank, self._barrier = own, rank, barrier

    def save(self, folder: str) -> None:
        """Write this rank's part, and upload it.

        Args:
            folder: URI of the checkpoint, below which is nothing yet.

        Raises:
            OSError: the scratch folder takes no more.
            StorageRefused: the object store does not take it.
        """
        with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch:
            self._own.save(scratch)
            upload_part(folder, Path(scratch), rank=self._rank)

    def load_state(self, folder: str | None) -> None:
        """Download a checkpoint, and take the state in it; `None`: fresh.

        Args:
            folder: `Checkpoints.state` of it, the same on all ranks.

        Raises:
            CheckpointDamaged: it does not load.
            StoreUnavailable: the object store does not answer.
        """
        if folder is None:
            self._own.load_state(None)
            return
        uri, _, word = folder.rpartition("#")
        scratch = Path(tempfile.gettempdir()) / f"{_SCRATCH}{word}"
        try:
            with _alone(scratch.with_suffix(".lock")):
                if not scratch.is_dir():
                    self._download(uri, scratch)
            self._own.load_state(str(scratch))
            self._barrier()  # the ranks of this pod read the same copy
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.with_suffix(".lock").unlink(missing_ok=True)

    def _download(self, uri: str, scratch: Path) -> None:
        aside = scratch.with_suffix(".partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(mode=0o700)
        try:
            download_checkpoint(uri, aside)
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"checkpoint {uri} does not load: it was deleted ({error})") from error
        else:
            aside.rename(scratch)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    # ------------------------------------------------------------------------------------------ the backend's

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take weights."""
        self._own.load(tensors)

    def begin_step(self, step: int) -> None:
        """Start a step."""
        self._own.begin_step(step)

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Compute this rank's share of a micro-batch."""
        self._own.accumulate(samples)

    def finish_step(self) -> StepStats:
        """Take the optimizer's step."""
        return self._own.finish_step()

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The weights."""
        return self._own.tensors()

    def random_state(self) -> str:
        """Digest of the random state."""
        return self._own.random_state()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep the other ranks of this machine out, while the context lasts."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
