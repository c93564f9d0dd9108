"""What a job's checkpoints are, wherever they are: their keys, what each says about itself, and the interface.

Loads no torch: the backend writes the tensors, and a store everything else.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator

from rljob_core.errors import SpecError
from rljob_core.messages import Retention
from rljob_core.remote_uri import leaves_folder
from rljob_runtime.model.folder_files import files_taken_over
from rljob_runtime.model.identity import model_identity

FIELD = "spec.trainer.checkpoint.uri"
INFO = "checkpoint.json"
ADAPTER_SETTINGS = "adapter_config.json"
"""In a checkpoint of adapters, what they are of."""
KEPT = 2
"""Newest versions whose checkpoints are kept."""
_AWAITED = 4
"""Of the versions whose evaluations are still to come, the newest that are kept, too, where the best one is."""
_KEY = re.compile(r"step-\d{6,15}(-\d{1,15})?", re.ASCII)


class CheckpointFile(BaseModel):
    """One file of a checkpoint in an object store: its size in bytes, and the xxh3-128 of its content."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    size: int
    digest: str


class CheckpointInfo(BaseModel):
    """What `checkpoint.json` says."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int
    """Policy version of the weights."""
    manifest: str = ""
    """Digest of that version's manifest."""
    attempt: int
    """Trainer attempt that wrote it."""
    model: str
    """Identity of the model that the job trains, see `rljob_runtime.model.identity`."""
    files: dict[str, CheckpointFile] = {}
    """In an object store: the other files, by name."""

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, CheckpointFile]) -> dict[str, CheckpointFile]:
        """Refuse names that lead out of the folder into which they are downloaded."""
        for name in files:
            if leaves_folder(name):
                raise ValueError(f"{name!r} is not the name of a checkpoint's file")
        return files


class Checkpoints(ABC):
    """The checkpoints of one job.

    Args:
        model_path: folder of the initial model: its identity, its tokenizer.
    """

    def __init__(self, *, model_path: Path) -> None:
        self._model_path = model_path

    @abstractmethod
    def write(
        self,
        *,
        version: int,
        manifest: str,
        attempt: int,
        save: Callable[[str], None],
        retention: Retention | None = None,
    ) -> str:
        """Write a checkpoint; its key.

        A key is never written twice (`step-000120`, then `step-000120-2`): what the ledger names stays what it was.

        Args:
            version: policy version of the weights.
            manifest: digest of its manifest.
            attempt: of the trainer.
            save: writes model, optimizer and random state to an empty place (`TrainerBackend.save`).
            retention: which older ones are kept; None: the newest ones alone.

        Raises:
            StorageRefused: the storage refuses (full, read-only, …); earlier checkpoints are as they were.
        """

    @abstractmethod
    def prune(self, attempt: int, retention: Retention | None) -> None:
        """Remove what is not to be kept, and what no newer attempt than this one has begun and not finished."""

    @abstractmethod
    def put(self, key: str, fill: Callable[[Path], None]) -> None:
        """Store a checkpoint that was written before.

        Args:
            key: of the checkpoint.
            fill: writes its files into an empty folder.
        """

    @abstractmethod
    def forget(self, *, after: int) -> None:
        """Remove the checkpoints of later versions, which were revoked."""

    @abstractmethod
    def keys(self) -> list[str]:
        """Keys of the complete checkpoints, the oldest first."""

    @abstractmethod
    def is_used(self) -> bool:
        """Whether anything of a checkpoint is there, complete or not."""

    @abstractmethod
    def place(self, key: str) -> str:
        """The folder or the URI of a checkpoint."""

    @abstractmethod
    def state(self, key: str) -> str:
        """What a backend's `load_state` takes to load a checkpoint; another word at each call, in an object store."""

    @abstractmethod
    def local(self, key: str) -> AbstractContextManager[Path]:
        """A checkpoint's files in a folder of this machine, while the context lasts.

        Raises:
            FileNotFoundError: there is none of that key, or it was deleted meanwhile.
        """

    @abstractmethod
    def _read_info(self, key: str) -> bytes:
        """The content of `checkpoint.json`.

        Raises:
            OSError: there is none.
        """

    def newest(self, version: int) -> tuple[int, str] | None:
        """Version and key of the newest checkpoint of no later a version than this; None if there is none."""
        found = [(order(key), key) for key in self.keys() if order(key)[0] <= version]
        if not found:
            return None
        (newest, _), key = max(found)
        return newest, key

    def info(self, key: str) -> CheckpointInfo:
        """What a checkpoint says about itself.

        Raises:
            SpecError: there is none of that key, or it is damaged.
        """
        try:
            return CheckpointInfo.model_validate_json(self._read_info(key))
        except (OSError, ValueError) as error:
            raise SpecError(
                "", f"{self.place(key)} is not a checkpoint: {INFO} is missing or damaged"
            ) from error

    def verify_model(self, key: str) -> None:
        """Check that a checkpoint belongs to the model in `model_path`.

        Raises:
            SpecError: it belongs to another, or is none.
        """
        if self.info(key).model != model_identity(self._model_path):
            raise SpecError(
                "spec.model.uri",
                f"the checkpoint {self.place(key)} was made from another model than {self._model_path}: "
                "name the model that the job started with, or another output folder",
            )

    def _files_of_model(self, saved: Collection[str]) -> Iterator[Path]:
        """The files that a checkpoint takes over from the model: its tokenizer, its settings.

        Beside adapters there is no config.json: with one, transformers would look for whole weights in the folder,
        without it for the base model that the adapters name.

        Args:
            saved: names of the files that the checkpoint has already.
        """
        left = {*saved, "config.json"} if ADAPTER_SETTINGS in saved else {*saved}
        return (path for path in files_taken_over(self._model_path) if path.name not in left)


def is_key(name: str) -> bool:
    """Whether this is the key of a checkpoint."""
    return _KEY.fullmatch(name) is not None


def order(key: str) -> tuple[int, int]:
    """A checkpoint's version, and which of that version it is."""
    _, version, *copy = key.split("-")
    return int(version), int(copy[0]) if copy else 1


def kept_versions(keys: Iterable[str], retention: Retention | None) -> set[int]:
    """The versions whose checkpoints are kept, of these: the newest, the best, and what may turn out to be better."""
    found = sorted({order(key)[0] for key in keys})
    kept = {*found[-KEPT:]}
    if retention is not None:
        awaited = [v for v in found if v > retention.evaluated and v % retention.every == 0]
        kept |= {*awaited[-_AWAITED:], *({retention.best} & {*found})}
    return kept
