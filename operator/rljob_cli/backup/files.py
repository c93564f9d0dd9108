"""Copies the weights, checkpoints and trainer's log that belong to a ledger, while the job continues.

A backup has two moments: first `look` notes what is there, then the ledger is read. What was there at the first moment
proves nothing that the ledger, read later, lacks. What the ledger refers to was stored before it was recorded, so it
can be copied after the second moment. The backup takes both, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rljob_cli.backup.copied import Copied
from rljob_core.errors import SpecError, WeightsRejected
from rljob_core.job_state.versioned import VersionedState
from rljob_core.ports import WeightManifest
from rljob_runtime.storage.objects import PART_BYTES
from rljob_runtime.training.checkpoint_base import INFO, Checkpoints
from rljob_runtime.weights.format import parse_manifest
from rljob_runtime.weights.objects import MANIFEST, TENSORS
from rljob_runtime.weights.transport import Transport


class Vanished(Exception):
    """The job deleted what the ledger refers to before it was copied: a newer ledger no longer refers to it."""


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where a job keeps what is not in its streams.

    Attributes:
        weights: the transport of its versions.
        checkpoints: its checkpoints.
        trainer: folder of its trainer's log.
        copy_log: brings the folder up to date, if the log is in an object store.
    """

    weights: Transport
    checkpoints: Checkpoints
    trainer: Path
    copy_log: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was there before the ledger was read.

    Attributes:
        versions: keys of manifests.
        checkpoints: keys.
        logs: bytes of each file of the trainer's log, by name.
    """

    versions: frozenset[str]
    checkpoints: tuple[str, ...]
    logs: Mapping[str, int]


def look(job: JobFiles) -> Seen:
    """Note what is there, before the ledger is read."""
    versions, checkpoints = frozenset(job.weights.listing()), tuple(job.checkpoints.keys())
    job.copy_log()
    return Seen(
        versions,
        checkpoints,
        # After the versions: the trainer logs a micro-batch before it makes a version of it.
        {file.name: file.stat().st_size for file in job.trainer.glob("attempt-*.jsonl")},
    )


def copy_files(job: JobFiles, seen: Seen, state: VersionedState, copied: Copied) -> None:
    """Copy what was seen, and what the ledger refers to; `copy_newest` goes before.

    Args:
        job: where the files are.
        seen: what was there before the ledger was read.
        state: of the ledger.
        copied: what is in the backup, added to.

    Raises:
        StorageRefused, StoreUnavailable: of the backup, or of the job's storage.
    """
    _copy_weights(job.weights, seen, state, copied)
    _copy_checkpoints(job.checkpoints, seen, state, copied)
    job.copy_log()
    for file in sorted(job.trainer.glob("attempt-*.jsonl")):
        lines = _log(file, seen.logs.get(file.name, 0), state.version)
        # The lines of a file never change, so its length says what it is.
        copied.add(f"trainer/{len(lines)}/{file.name}", [lines])


def copy_newest(job: JobFiles, seen: Seen, state: VersionedState, copied: Copied) -> None:
    """Copy what the job deletes soonest, and would continue from: the newest checkpoint, and the newest version.

    Raises:
        Vanished: one of them was deleted.
        StorageRefused, StoreUnavailable: of the backup, or of the job's storage.
    """
    with ExitStack() as held:
        keys = _belonging(job.checkpoints, seen, state)
        # A file that is open stays, though the job deletes it.
        checkpoint = next(filter(None, (_opened(job.checkpoints, key, held) for key in keys)), None)
        if checkpoint is None and set(seen.checkpoints) - set(job.checkpoints.keys()):
            raise Vanished("the newest checkpoint was deleted")
        _copy_newest_version(job.weights, seen, state, copied)
        for path, file in (checkpoint or {}).items():
            copied.add(path, _content(file))


def _copy_newest_version(weights: Transport, seen: Seen, state: VersionedState, copied: Copied) -> None:
    """Copy the tensors of the version that the job would continue from, and of those that it is a delta of.

    That is the ledger's newest. A ledger that had lost its end before it was read may be so old that these are deleted;
    a coordinator then restores commits from the manifests of later versions, and so will that of the copy.
    """
    if not state.chain:
        return None
    try:
        _copy_chain(weights, state.chain[-1].key, copied)
    except Vanished:
        for key in _lost_commits(weights, seen, state):
            with suppress(Vanished):
                return _copy_chain(weights, key, copied)
        raise


def _lost_commits(weights: Transport, seen: Seen, state: VersionedState) -> list[str]:
    """Keys of versions that were seen and follow the ledger's newest, by their parents; the newest first."""
    following: dict[str, list[WeightManifest]] = {}
    for key in seen.versions - {commit.key for commit in state.chain}:
        with suppress(WeightsRejected):
            if (content := weights.manifest(key)) is not None:
                manifest = parse_manifest(content, key)
                following.setdefault(manifest.parent, []).append(manifest)
    found: list[str] = []
    parents = [state.chain[-1].manifest]
    while children := [child for parent in parents for child in following.pop(parent, ())]:
        found += [child.key for child in children]
        parents = [child.digest for child in children]
    return found[::-1]


def _copy_chain(weights: Transport, newest: str, copied: Copied) -> None:
    key: str | None = newest
    while key is not None:
        try:
            manifest = weights.manifest(key)
            copied.add(f"weights/{key}/{TENSORS}", _tensors(weights, key))
            base = parse_manifest(manifest, key).base if manifest is not None else None
        except WeightsRejected as error:
            raise Vanished(str(error)) from error
        key = base.key if base is not None else None


def _copy_weights(weights: Transport, seen: Seen, state: VersionedState, copied: Copied) -> None:
    """Copy manifests, and the tensors of other versions that are still there."""
    stored = weights.listing()
    for key in sorted(seen.versions | {commit.key for commit in state.chain}, reverse=True):
        manifest, tensors = f"weights/{key}/{MANIFEST}", f"weights/{key}/{TENSORS}"
        if manifest in copied.known:
            copied.keep(manifest)
        else:
            try:
                content = weights.manifest(key)
            except WeightsRejected:
                content = None
            if content is None:  # no version, or a damaged one: the audit says so, of the job as of the copy
                continue
            copied.add(manifest, [content])
        if stored.get(key, False):
            with suppress(WeightsRejected):
                copied.add(tensors, _tensors(weights, key))
        copied.weights[key] = tensors in copied.files


def _tensors(weights: Transport, key: str) -> Iterator[memoryview]:
    with weights.reader(key) as reader:
        for start in range(0, reader.size, PART_BYTES):
            yield reader.take(min(PART_BYTES, reader.size - start)).data


def _copy_checkpoints(checkpoints: Checkpoints, seen: Seen, state: VersionedState, copied: Copied) -> None:
    for key in _belonging(checkpoints, seen, state):
        with ExitStack() as held:
            for path, file in (_opened(checkpoints, key, held) or {}).items():
                copied.add(path, _content(file))


def _belonging(checkpoints: Checkpoints, seen: Seen, state: VersionedState) -> list[str]:
    """Keys of the checkpoints that were seen, or are of a version that the ledger has; the newest first."""
    found = []
    for key in reversed(checkpoints.keys()):
        with suppress(SpecError):  # it was deleted, or is damaged
            info = checkpoints.info(key)
            if key in seen.checkpoints or state.is_committed(info.version, info.manifest):
                found.append(key)
    return found


def _opened(checkpoints: Checkpoints, key: str, held: ExitStack) -> dict[str, IO[bytes]] | None:
    """The open files of a checkpoint, by their paths in the backup; None if it was deleted."""
    try:
        folder = held.enter_context(checkpoints.local(key))
        # After a rollback, a key may be written again: what a checkpoint says about itself tells them apart.
        name = hashlib.sha256((folder / INFO).read_bytes()).hexdigest()[:16]
        found: dict[str, IO[bytes]] = {
            f"checkpoints/{key}/{name}/{path.relative_to(folder).as_posix()}": held.enter_context(
                path.open("rb")
            )
            for path in _regular_files(folder)
        }
        (folder / INFO).stat()  # a checkpoint is hidden before its files are deleted
    except FileNotFoundError:
        return None
    return found


def _regular_files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for path in (Path(parent) / name for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                yield path


def _content(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(PART_BYTES):
        yield chunk


def _log(file: Path, seen: int, version: int) -> bytes:
    """The lines that were there when the ledger was read, and those after them that belong to its steps.

    Args:
        file: of the trainer's log.
        seen: its bytes before the ledger was read.
        version: the ledger's newest: steps below it are committed.
    """
    content = file.read_bytes()
    end = content.rfind(b"\n", 0, seen) + 1
    for line in content[end:].splitlines(keepends=True):
        try:
            belongs = line.endswith(b"\n") and json.loads(line)["step"] < version
        except (ValueError, LookupError, TypeError):
            belongs = False
        if not belongs:
            break
        end += len(line)
    return content[:end]
