"""Checkpoints in an object store: `<root>/step-000120/…`, whole once `checkpoint.json` is there.

    <root>/step-000120/model.safetensors, …          the files that a checkpoint's folder would have
                      /ranks/00000.json              what each rank has uploaded: sizes and digests
                      /checkpoint.json               last: what all files are

Every rank uploads its own files and then its list; rank 0 reads the lists, once all ranks are done, and puts
`checkpoint.json`. An object becomes visible as a whole, so a checkpoint that has it is complete, whichever process was
killed at whichever moment. When a checkpoint is deleted, that object goes first.

Nothing is renamed in an object store, so keys tell writers apart: the checkpoint of attempt 3 is `step-000120-3`. A
gang that was replaced and is still writing therefore never meets the files of the next.
"""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rljob_core.errors import CheckpointDamaged, StorageRefused
from rljob_core.messages import Retention
from rljob_runtime.model.identity import model_identity
from rljob_runtime.storage.objects import object_store, reading, writing
from rljob_runtime.storage.transfers import (
    at_once,
    download_file,
    files_below,
    get_object,
    patiently,
    put_object,
    upload_file,
)
from rljob_runtime.training.checkpoint_base import (
    FIELD,
    INFO,
    CheckpointFile,
    CheckpointInfo,
    Checkpoints,
    is_key,
    kept_versions,
    order,
)

_RANKS = "ranks"
_ATTEMPTS = 1_000_000
"""More than attempts have; a checkpoint's number is its attempt's, plus as many times this as the attempt wrote it."""
_FILES: TypeAdapter[dict[str, CheckpointFile]] = TypeAdapter(dict[str, CheckpointFile])

log = logging.getLogger(__name__)


class ObjectCheckpoints(Checkpoints):
    """The checkpoints of one job in an object store.

    Args:
        root_uri: `s3://bucket/prefix` or `gs://bucket/prefix`.
        model_path: folder of the initial model: its identity, its tokenizer.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """

    def __init__(self, root_uri: str, *, model_path: Path) -> None:
        super().__init__(model_path=model_path)
        self._files, self._root = object_store(root_uri, field=FIELD)
        self._uri = root_uri.rstrip("/")

    def write(
        self,
        *,
        version: int,
        manifest: str,
        attempt: int,
        save: Callable[[str], None],
        retention: Retention | None = None,
    ) -> str:
        """Write a checkpoint; `save` gets its URI, see `Checkpoints.write`."""
        key = ""
        try:
            key = self._new_key(version, attempt)
            save(self.place(key))
            info = CheckpointInfo(
                version=version, manifest=manifest, attempt=attempt, model=model_identity(self._model_path)
            )
            self._commit(key, info, self._uploaded(key))
        except (OSError, StorageRefused) as error:
            raise StorageRefused(
                f"cannot write the checkpoint of version {version} to {self.place(key)}: {error}"
            ) from error
        self.prune(attempt, retention)
        return key

    def put(self, key: str, fill: Callable[[Path], None]) -> None:
        """Store a checkpoint; see `Checkpoints.put`."""
        with tempfile.TemporaryDirectory(prefix="rljob-checkpoint-") as scratch:
            fill(Path(scratch))
            info = CheckpointInfo.model_validate_json((Path(scratch) / INFO).read_bytes())
            (Path(scratch) / INFO).unlink()
            upload_part(self.place(key), Path(scratch), rank=0)
        self._commit(key, info, self._uploaded(key), with_model=False)

    def forget(self, *, after: int) -> None:
        """Remove the checkpoints of later versions, and what was begun of such."""
        for key in self._keys_begun():
            if order(key)[0] > after:
                self._remove(key)

    def keys(self) -> list[str]:
        """Keys of the complete checkpoints, the oldest first."""
        return [key for key in self._keys_begun() if INFO in self._objects(key)]

    def is_used(self) -> bool:
        """Whether the store has any file of a checkpoint."""
        return bool(self._keys_begun())

    def place(self, key: str) -> str:
        """The URI of a checkpoint."""
        return f"{self._uri}/{key}"

    def state(self, key: str) -> str:
        """The URI, with a word that names the scratch folder of this load (`ObjectStateBackend`)."""
        return f"{self.place(key)}#{secrets.token_hex(8)}"

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """A copy of a checkpoint."""
        with tempfile.TemporaryDirectory(prefix="rljob-checkpoint-") as scratch:
            download_checkpoint(self.place(key), Path(scratch))
            yield Path(scratch)

    # ------------------------------------------------------------------------------------------ inside

    def _read_info(self, key: str) -> bytes:
        return _content(self.place(key), INFO)

    def _new_key(self, version: int, attempt: int) -> str:
        taken = set(self._keys_begun())
        numbers = (attempt + written * _ATTEMPTS for written in count())
        names = (f"step-{version:06d}" + (f"-{number}" if number > 1 else "") for number in numbers)
        return next(name for name in names if name not in taken)

    def _uploaded(self, key: str) -> dict[str, CheckpointFile]:
        """What all ranks have uploaded.

        Raises:
            StorageRefused: two ranks have uploaded different files of one name, or a list is damaged.
        """
        found: dict[str, CheckpointFile] = {}
        for name in sorted(self._objects(key)):
            if not name.startswith(f"{_RANKS}/"):
                continue
            try:
                files = _FILES.validate_json(_content(self.place(key), name))
            except (FileNotFoundError, ValidationError) as error:
                raise StorageRefused(f"{self.place(key)}/{name} is not what was written: {error}") from error
            for path, file in files.items():
                if found.setdefault(path, file) != file:
                    raise StorageRefused(f"two ranks have written different files {path}")
        return found

    def _commit(
        self, key: str, info: CheckpointInfo, files: dict[str, CheckpointFile], *, with_model: bool = True
    ) -> None:
        """Upload what comes from the model, look whether all is there, and put `checkpoint.json`."""
        folder = f"{self._root}/{key}"
        if with_model:
            for path in self._files_of_model(files):
                name = f"{folder}/{path.name}"
                size, digest = patiently(partial(upload_file, self._files, path, name))
                files[path.name] = CheckpointFile(size=size, digest=digest)
        stored = self._objects(key)
        if missing := sorted(name for name, file in files.items() if stored.get(name) != file.size):
            raise StorageRefused(f"{', '.join(missing)} were removed while they were written")
        content = info.model_copy(update={"files": files}).model_dump_json().encode()
        put_object(self._files, f"{folder}/{INFO}", content)

    def prune(self, attempt: int, retention: Retention | None) -> None:
        """Remove what is not kept, and what no newer attempt than this one has begun and not finished."""
        try:
            begun, whole = self._keys_begun(), self.keys()
            kept = kept_versions(whole, retention)
            for key in begun:
                unfinished = key not in whole and order(key)[1] % _ATTEMPTS <= attempt
                if unfinished or (key in whole and order(key)[0] not in kept):
                    self._remove(key)
        except (
            Exception
        ) as error:  # a store's client may raise anything; what is too much is removed next time
            log.warning("old checkpoints are not deleted: %s", error)

    def _remove(self, key: str) -> None:
        """Delete a checkpoint: first what makes it one."""
        folder = f"{self._root}/{key}"
        names = self._objects(key)
        for name in sorted(names, key=lambda one: (one != INFO, one)):
            with suppress(FileNotFoundError), writing(f"{folder}/{name}"):
                self._files.rm_file(f"{folder}/{name}")

    def _keys_begun(self) -> list[str]:
        """Keys of which any object is there, the oldest first."""

        def listed() -> list[str]:
            try:
                with reading(self._root):
                    self._files.invalidate_cache()
                    return [str(entry) for entry in self._files.ls(self._root, detail=False)]
            except FileNotFoundError:
                return []

        found = {entry.rstrip("/").rpartition("/")[2] for entry in patiently(listed)}
        return sorted(filter(is_key, found), key=order)

    def _objects(self, key: str) -> dict[str, int]:
        """Sizes of a checkpoint's objects, by name."""
        folder = f"{self._root}/{key}"

        def listed() -> dict[str, int]:
            try:
                with reading(folder):
                    self._files.invalidate_cache()
                    found = self._files.find(folder, detail=True)
            except FileNotFoundError:
                return {}
            return {name.removeprefix(f"{folder}/"): int(one["size"]) for name, one in found.items()}

        return patiently(listed)


def upload_part(uri: str, folder: Path, *, rank: int) -> None:
    """Upload the files that one rank has of a checkpoint, and then its list of them.

    Args:
        uri: of the checkpoint.
        folder: with the files.
        rank: of the trainer.

    Raises:
        StorageRefused: the store does not take them.
    """
    files, root = object_store(uri, field=FIELD)

    def put(name: str, path: Path) -> tuple[str, tuple[int, str]]:
        upload = partial(upload_file, files, path, f"{root}/{name}")
        return name, patiently(upload)

    stored = at_once(partial(put, name, path) for name, path in files_below(folder).items())
    listed = {name: {"size": size, "digest": digest} for name, (size, digest) in stored}
    content, name = json.dumps(listed).encode(), f"{root}/{_RANKS}/{rank:05d}.json"
    put_object(files, name, content)


def download_checkpoint(uri: str, folder: Path) -> None:
    """Download a checkpoint's files into an empty folder, verified.

    Raises:
        FileNotFoundError: there is none, or it was deleted meanwhile.
        CheckpointDamaged: a file is not what was written.
        StoreUnavailable: the store does not answer.
        StorageRefused: the disk does not take them.
    """
    files, root = object_store(uri, field=FIELD)
    content = _content(uri, INFO)
    try:
        info = CheckpointInfo.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointDamaged(
            f"{uri}/{INFO} is damaged: {error.errors(include_url=False)[0]['msg']}"
        ) from error

    def get(name: str, file: CheckpointFile) -> None:
        act = partial(
            download_file, files, f"{root}/{name}", folder / name, size=file.size, digest=file.digest
        )
        patiently(act)

    at_once(partial(get, name, file) for name, file in info.files.items())
    (folder / INFO).write_bytes(content)


def _content(uri: str, name: str) -> bytes:
    files, root = object_store(uri, field=FIELD)
    return get_object(files, f"{root}/{name}")
