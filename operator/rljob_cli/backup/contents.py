"""What a backup holds, put where a job keeps it: its streams, weights, checkpoints and trainer's log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from rljob_cli.backup.index import INDEX, Index, read_index
from rljob_cli.backup.messages import decoded, restore_stream
from rljob_cli.backup.place import BackupPlace, verified
from rljob_cli.run_folder.folder import Identity
from rljob_core.config import JobConfig
from rljob_core.errors import BackupDamaged, SpecError
from rljob_core.messages.limits import LARGEST_MANIFEST
from rljob_core.ports import Channel, Message
from rljob_runtime.locations import local_path
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.process.fsync import create_folder
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.trainer_log import TrainerLogObjects, put_log
from rljob_runtime.training.checkpoint_base import Checkpoints
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.weights.objects import MANIFEST, TENSORS
from rljob_runtime.weights.transport import Transport


def required_index(place: BackupPlace) -> Index:
    """The index of the backup at a place.

    Raises:
        SpecError: there is no backup.
        BackupDamaged: see `read_index`.
    """
    index = read_index(place)
    if index is None:
        raise SpecError("TARGET", f"holds no backup: it has no {INDEX}")
    return index


def identity_in(index: Index) -> Identity:
    """The job that was backed up.

    Raises:
        BackupDamaged: the index does not describe one.
    """
    try:
        found = Identity.of(index.identity)
    except ValueError as error:
        raise BackupDamaged(
            f"{INDEX} of the backup does not describe a job ({error}): use the release of rljob that wrote it, or "
            "another backup"
        ) from error
    if (found.namespace, found.name, found.uid) != (index.namespace, index.name, index.uid):
        raise BackupDamaged(f"{INDEX} of the backup describes two jobs: use another backup")
    return found


async def used_streams(store: NatsStore) -> list[Channel]:
    """The channels in which anything was ever stored."""
    return [channel for channel in Channel if await store.last_sequence(channel)]


async def fill_stream(
    index: Index, place: BackupPlace, store: NatsStore, channel: Channel, *, grows: bool
) -> None:
    """Store a channel's messages in its stream, which must never have had one.

    Args:
        grows: whether the operator enlarges the stream as it fills; otherwise it has the limit of the one backed up.
    """
    copy, messages = index.streams[channel], _messages(index, place, channel)
    if not grows:
        await store.grow(channel, copy.limit)
    await restore_stream(store, channel, messages, last_sequence=copy.last_sequence, grows=grows)


async def fill_folders(index: Index, place: BackupPlace, config: JobConfig, weights: Transport) -> None:
    """Store weights, checkpoints and the trainer's log where the job keeps them."""
    await asyncio.to_thread(_restore_weights, index, place, weights)
    checkpoints = open_checkpoints(config.checkpoint_uri, model_path=Path())
    await asyncio.to_thread(_restore_checkpoints, index, place, checkpoints)
    await asyncio.to_thread(_restore_log, index, place, config.trainer_log_uri)


def _messages(index: Index, place: BackupPlace, channel: Channel) -> Iterator[Message]:
    for segment in index.streams[channel].segments:
        yield from decoded(_file(index, place, segment.path), segment.path)


def _file(index: Index, place: BackupPlace, path: str) -> Iterator[bytes]:
    stored = index.files.get(path)
    if stored is None:
        raise BackupDamaged(f"the index of the backup does not name {path}: use another backup")
    return verified(place, path, stored)


def _restore_weights(index: Index, place: BackupPlace, weights: Transport) -> None:
    for key in sorted(index.weights):
        manifest = _manifest(index, place, f"weights/{key}/{MANIFEST}")
        has_tensors = index.weights[key]
        with weights.writer(key) as version:
            for chunk in _file(index, place, f"weights/{key}/{TENSORS}") if has_tensors else ():
                version.write(chunk)
            version.commit(manifest)
        if not has_tensors:
            weights.delete(key)


def _manifest(index: Index, place: BackupPlace, path: str) -> bytes:
    if (stored := index.files.get(path)) is not None and stored.size > LARGEST_MANIFEST:
        raise BackupDamaged(
            f"{path} in the backup has more than {LARGEST_MANIFEST:,} bytes: use another backup"
        )
    return b"".join(_file(index, place, path))


def _restore_checkpoints(index: Index, place: BackupPlace, checkpoints: Checkpoints) -> None:
    found: dict[str, dict[str, str]] = {}
    for path in index.files:
        if path.startswith("checkpoints/"):
            _, key, _, inner = path.split("/", 3)
            found.setdefault(key, {})[inner] = path
    for key, paths in found.items():

        def fill(folder: Path, paths: dict[str, str] = paths) -> None:
            for inner, path in paths.items():
                _write(folder / inner, _file(index, place, path))

        checkpoints.put(key, fill)


def _restore_log(index: Index, place: BackupPlace, uri: str) -> None:
    if not is_object_store(uri):
        create_folder(local_path(uri))
        _fill_log(index, place, local_path(uri))
        return
    with TemporaryDirectory(prefix="rljob-trainer-log-") as folder:
        _fill_log(index, place, Path(folder))
        put_log(TrainerLogObjects(uri), Path(folder))


def _fill_log(index: Index, place: BackupPlace, folder: Path) -> None:
    for path in index.files:
        if path.startswith("trainer/"):
            _write(folder / path.rpartition("/")[2], _file(index, place, path))


def _write(path: Path, chunks: Iterator[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
