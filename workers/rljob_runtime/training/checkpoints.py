"""Checkpoints: folders `step-000120` in Hugging Face format with optimizer and random state, and a link `latest`.

A checkpoint is written under a hidden name, synced and renamed, and then `latest` is switched over: a reader of the
root finds whole checkpoints only, whichever process is killed at whichever moment. The newest two versions are kept.
Loads no torch: the backend writes the tensors, and this module everything else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rljob_core.errors import SpecError, StorageRefused
from rljob_runtime.locations import local_path
from rljob_runtime.model.identity import model_identity
from rljob_runtime.process.fsync import create_folder, sync_folder, sync_tree

LATEST = "latest"
INFO = "checkpoint.json"
KEPT = 2
_WRITING = ".writing"
_KEY = re.compile(r"step-\d{6,}(-\d+)?")
#: Files of a model's folder that are not copied: the checkpoint has its own, or they are other forms of the weights.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")


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


class CheckpointStore:
    """The checkpoints of one job.

    Args:
        root_uri: `file://` or a path; made when first written to.
        model_path: folder of the initial model: its identity, its tokenizer.

    Raises:
        SpecError: the URI has another scheme.
    """

    def __init__(self, root_uri: str, *, model_path: Path) -> None:
        self._root = local_path(root_uri, field="spec.trainer.checkpoint.uri")
        self._model_path = model_path

    def write(self, *, version: int, manifest: str, attempt: int, save: Callable[[str], None]) -> str:
        """Write a checkpoint and point `latest` to it; its key.

        A key is never written twice (`step-000120`, then `step-000120-2`): what the ledger names stays what it was.

        Args:
            version: policy version of the weights.
            manifest: digest of its manifest.
            attempt: of the trainer.
            save: writes model, optimizer and random state into an empty folder (`TrainerBackend.save`).

        Raises:
            StorageRefused: the file system refuses (full, read-only, …); earlier checkpoints are as they were.
        """
        name = f"step-{version:06d}"
        keys = chain([name], (f"{name}-{number}" for number in count(2)))
        key = next(key for key in keys if not (self._root / key).exists())
        folder, aside = self._root / key, self._root / f".{key}.{attempt}{_WRITING}"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            create_folder(self._root)
            aside.mkdir()
            save(str(aside))
            self._copy_tokenizer(aside)
            info = CheckpointInfo(
                version=version,
                manifest=manifest,
                attempt=attempt,
                model=model_identity(self._model_path),
            )
            (aside / INFO).write_text(info.model_dump_json())
            sync_tree(aside)
            aside.rename(folder)
            sync_folder(self._root)
            self._point_latest(key)
            self._prune(attempt)
        except Exception as error:
            if not _is_of_storage(error):
                raise
            reason = getattr(error, "strerror", None) or error
            raise StorageRefused(
                f"cannot write the checkpoint of version {version} to {folder}: {reason}"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return key

    def put(self, key: str, fill: Callable[[Path], None]) -> None:
        """Store a checkpoint that was written before, and point `latest` to it, as the newest of those put so far.

        Args:
            key: of the checkpoint.
            fill: writes its files into an empty folder.
        """
        aside = self._root / f".{key}.0{_WRITING}"
        shutil.rmtree(aside, ignore_errors=True)
        create_folder(self._root)
        try:
            aside.mkdir()
            fill(aside)
            sync_tree(aside)
            aside.rename(self._root / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync_folder(self._root)
        self._point_latest(self.keys()[-1])

    def forget(self, *, after: int) -> None:
        """Remove the checkpoints of later versions, which were revoked; `latest` names the newest that is left."""
        for key in [key for key in self.keys() if _order(key)[0] > after]:
            (self._root / key).rename(self._root / f".{key}.removed")
        if left := self.keys():
            self._point_latest(left[-1])
        else:
            (self._root / LATEST).unlink(missing_ok=True)
        self._sweep()

    def folder(self, key: str) -> Path:
        """The folder of a checkpoint."""
        return self._root / key

    def keys(self) -> list[str]:
        """Keys of the complete checkpoints, the oldest first."""
        if not self._root.is_dir():
            return []
        found = [p.name for p in self._root.iterdir() if _KEY.fullmatch(p.name) and (p / INFO).is_file()]
        return sorted(found, key=_order)

    def newest(self, version: int) -> tuple[int, str] | None:
        """Version and key of the newest checkpoint of no later a version than this; None if there is none."""
        found = [(_order(key), key) for key in self.keys() if _order(key)[0] <= version]
        if not found:
            return None
        (newest, _), key = max(found)
        return newest, key

    def info(self, key: str) -> CheckpointInfo:
        """What a checkpoint says about itself.

        Raises:
            SpecError: there is none of that key, or it is damaged.
        """
        path = self.folder(key) / INFO
        try:
            return CheckpointInfo.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise SpecError(
                "", f"{path.parent} is not a checkpoint: {path.name} is missing or damaged"
            ) from error

    def verify_model(self, key: str) -> None:
        """Check that a checkpoint belongs to the model in `model_path`.

        Raises:
            SpecError: it belongs to another, or is none.
        """
        if self.info(key).model != model_identity(self._model_path):
            raise SpecError(
                "spec.model.uri",
                f"the checkpoint {self.folder(key)} was made from another model than {self._model_path}: "
                "name the model that the job started with, or another output folder",
            )

    def _copy_tokenizer(self, folder: Path) -> None:
        for path in self._model_path.iterdir():
            if path.is_file() and not path.name.endswith(_WEIGHTS) and not (folder / path.name).exists():
                shutil.copyfile(path, folder / path.name)

    def _point_latest(self, key: str) -> None:
        aside = self._root / f".{LATEST}.writing"
        aside.unlink(missing_ok=True)
        aside.symlink_to(key)
        aside.replace(self._root / LATEST)
        sync_folder(self._root)

    def _prune(self, attempt: int) -> None:
        """Remove all but the newest versions, hidden first so that none is half-removed; and what was left aside."""
        keys = self.keys()
        kept = sorted({_order(key)[0] for key in keys})[-KEPT:]
        for key in keys:
            if _order(key)[0] not in kept:
                (self._root / key).rename(self._root / f".{key}.removed")
        self._sweep(attempt)

    def _sweep(self, attempt: int | None = None) -> None:
        """Remove what is hidden, but not what a newer attempt than this one is writing."""
        for path in self._root.glob(".step-*"):
            writer = path.name.removesuffix(_WRITING).rpartition(".")[2]
            if attempt is None or not writer.isdecimal() or int(writer) <= attempt:
                shutil.rmtree(path, ignore_errors=True)


def _is_of_storage(error: Exception) -> bool:
    """Whether a write failed: safetensors and torch have words of their own for it, and no type."""
    return isinstance(error, OSError) or any(
        words in str(error) for words in ("I/O error", "inline_container")
    )


def _order(key: str) -> tuple[int, int]:
    """A checkpoint's version, and which of that version it is."""
    _, version, *copy = key.split("-")
    return int(version), int(copy[0]) if copy else 1
