"""Checkpoints: folders `step-000120` in Hugging Face format with optimizer and random state, and a link `latest`.

A checkpoint is written under a hidden name, synced and renamed, and then `latest` is switched over: a reader of the
root finds whole checkpoints only, whichever process is killed at whichever moment. The newest two versions are kept,
and the one to which `best` points (`keepBest`).
At `s3://` and `gs://` URIs `ObjectCheckpoints` keeps the same files as objects.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from rljob_core.errors import StorageRefused
from rljob_core.messages import Retention
from rljob_runtime.locations import local_path
from rljob_runtime.model.identity import model_identity
from rljob_runtime.process.fsync import create_folder, sync_folder, sync_tree
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.plain_files import read_plain
from rljob_runtime.training.checkpoint_base import (
    FIELD,
    INFO,
    CheckpointInfo,
    Checkpoints,
    is_key,
    kept_versions,
    order,
)
from rljob_runtime.training.checkpoint_objects import ObjectCheckpoints

LATEST, BEST = "latest", "best"
_WRITING = ".writing"
_LARGEST_INFO = 16 << 20


class CheckpointStore(Checkpoints):
    """The checkpoints of one job in a folder.

    Args:
        root_uri: `file://` or a path; made when first written to.
        model_path: folder of the initial model: its identity, its tokenizer.

    Raises:
        SpecError: the URI has another scheme.
    """

    def __init__(self, root_uri: str, *, model_path: Path) -> None:
        super().__init__(model_path=model_path)
        self._root = local_path(root_uri, field=FIELD)

    def write(
        self,
        *,
        version: int,
        manifest: str,
        attempt: int,
        save: Callable[[str], None],
        retention: Retention | None = None,
    ) -> str:
        """Write a checkpoint and point `latest` to it; see `Checkpoints.write`."""
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
            self._point(LATEST, key)
            self.prune(attempt, retention)
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
        """Store a checkpoint, and point `latest` to the newest of those put so far; see `Checkpoints.put`."""
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
        self._point(LATEST, self.keys()[-1])

    def forget(self, *, after: int) -> None:
        """Remove the checkpoints of later versions, which were revoked; `latest` names the newest that is left."""
        for key in [key for key in self.keys() if order(key)[0] > after]:
            (self._root / key).rename(self._root / f".{key}.removed")
        if left := self.keys():
            self._point(LATEST, left[-1])
        else:
            (self._root / LATEST).unlink(missing_ok=True)
        if not (self._root / BEST).exists():
            (self._root / BEST).unlink(missing_ok=True)
        self._sweep()

    def folder(self, key: str) -> Path:
        """The folder of a checkpoint."""
        return self._root / key

    def keys(self) -> list[str]:
        """Keys of the complete checkpoints, the oldest first."""
        if not self._root.is_dir():
            return []
        found = [p.name for p in self._root.iterdir() if is_key(p.name) and (p / INFO).is_file()]
        return sorted(found, key=order)

    def is_used(self) -> bool:
        """Whether the folder holds a checkpoint."""
        return any(self._root.glob("step-*"))

    def place(self, key: str) -> str:
        """The folder of a checkpoint, as text."""
        return str(self.folder(key))

    state = place

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """The folder of a checkpoint."""
        yield self.folder(key)

    def _read_info(self, key: str) -> bytes:
        return read_plain(self.folder(key) / INFO, limit=_LARGEST_INFO, within=self._root)

    def _copy_tokenizer(self, folder: Path) -> None:
        for path in self._files_of_model([path.name for path in folder.iterdir()]):
            shutil.copyfile(path, folder / path.name)

    def _point(self, link: str, key: str) -> None:
        aside = self._root / f".{link}.writing"
        aside.unlink(missing_ok=True)
        aside.symlink_to(key)
        aside.replace(self._root / link)
        sync_folder(self._root)

    def prune(self, attempt: int, retention: Retention | None) -> None:
        """Remove what is not kept, hidden first so that none is half-removed; point `best` to the best one."""
        keys = self.keys()
        kept = kept_versions(keys, retention)
        best = 0 if retention is None else retention.best
        if of_best := [key for key in keys if order(key)[0] == best]:
            self._point(BEST, of_best[-1])
        for key in keys:
            if order(key)[0] not in kept:
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


def open_checkpoints(uri: str, *, model_path: Path) -> Checkpoints:
    """Open the checkpoints at a path or URI (`file://`, `s3://`, `gs://`); made when first written to.

    Args:
        uri: the path or URI.
        model_path: folder of the initial model: its identity, its tokenizer.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """
    if is_object_store(uri):
        return ObjectCheckpoints(uri, model_path=model_path)
    return CheckpointStore(uri, model_path=model_path)
