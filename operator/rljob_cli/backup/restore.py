"""Makes a run's folder of a backup, so that `rljob run --resume` and `rljob audit` continue from there.

The folder is made under a hidden name beside its own and renamed when it is complete. What the job keeps elsewhere
(streams on a server, weights, checkpoints) is written there if nothing of the kind is there, and if the user has named
the place: a backup is data, and may come from anybody.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from rljob_cli.backup.contents import fill_folders, fill_stream, identity_in, required_index, used_streams
from rljob_cli.backup.index import Index
from rljob_cli.backup.place import BackupPlace
from rljob_cli.job_checks.output_folder import check_empty, check_unused, check_writable
from rljob_cli.manifest.load import InvalidManifest, change_job, override, value_at
from rljob_cli.run_folder.embedded_nats import streams_at_rest
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.job_file import stored_job
from rljob_cli.run_folder.streams import opened_store
from rljob_core.errors import SpecError
from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_runtime.messaging.connect import job_store
from rljob_runtime.process.fsync import create_folder, sync_folder, sync_tree
from rljob_runtime.weights.create import open_transport

PLACES = ("spec.nats.url", "spec.weights.uri", "spec.trainer.checkpoint.uri")
"""Fields that name where a job keeps what it writes, outside of its folder."""


async def restore(place: BackupPlace, folder: RunFolder, overrides: Sequence[str]) -> Index:
    """Restore a job into a folder that does not exist, or is empty.

    Args:
        place: of the backup.
        folder: of the run, to be made.
        overrides: `spec.path=value` each: where the job keeps from now on what it keeps outside of its folder.

    Returns:
        The backup's index.

    Raises:
        SpecError: there is no backup, the folder is used, or the job's other storage is.
        InvalidManifest: the job keeps something outside of the folder, and no override says where.
        BackupDamaged: the backup is not what its index names.
        StorageRefused, StoreUnavailable: of the backup, or of the job's storage.
    """
    index = required_index(place)
    check_writable(folder.path)
    check_empty(folder.path)
    identity = _moved(identity_in(index), overrides, folder)
    job = identity.stamp(stored_job(identity))
    check_unused(job)
    hidden = folder.path.with_name(f".{folder.path.name}.restoring")
    if hidden.is_symlink():  # it was not us: what it leads to would be cleared
        raise SpecError("DIR", f"{hidden} is a link: remove it, or name another folder")
    aside = RunFolder(hidden)
    with aside.locked():
        try:
            _clear(aside)
            await _fill(index, place, job, aside)
            aside.claim(identity)
            if index.summary is not None:
                replace_text(aside.summary, json.dumps(index.summary, indent=2))
            if index.engines is not None:
                replace_text(aside.engines, json.dumps(index.engines))
            sync_tree(aside.path)
            if folder.path.exists():
                folder.path.rmdir()
            aside.path.rename(folder.path)
            sync_folder(folder.path.parent)
        finally:
            shutil.rmtree(aside.path, ignore_errors=True)
    return index


def patches_in(index: Index) -> list[str]:
    """The changes by `rljob patch`, in the form of `--set`, that `--resume` no longer applies by itself."""
    return identity_in(index).patches


def _clear(folder: RunFolder) -> None:
    """Remove what a restore that was interrupted has left."""
    for path in folder.path.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _moved(identity: Identity, overrides: Sequence[str], folder: RunFolder) -> Identity:
    """The job where it is from now on.

    Of the machine that it was on, nothing is taken over: a path there may be anything here. Changes of `rljob patch`
    are part of its manifest, and no longer of what `--resume` applies by itself.
    """
    _check_places(identity, overrides, folder)
    job = change_job(stored_job(identity), overrides, Path.cwd())
    manifest = job.model_dump(mode="json", by_alias=True) if overrides else identity.manifest
    return replace(
        identity,
        manifest=manifest,
        given=manifest,
        patches=[],
        nats_url=job.spec.nats.url or "",
        origin="",
        viewer="",
        mirrors=False,
        downloads={name: {**one, "path": ""} for name, one in identity.downloads.items()},
    )


def _check_places(identity: Identity, overrides: Sequence[str], folder: RunFolder) -> None:
    """Check that the user has named every place outside of the folder that is written to.

    Raises:
        InvalidManifest: the backup alone names some.
    """
    given = [override(dict(deepcopy(identity.manifest)), text) for text in overrides]
    wrong = [
        SpecError(
            path,
            f"the backup's job keeps them at {place!r}, outside of {folder.path}: to write there, add "
            f"{shlex.join(['--set', f'{path}={place}'])}; to keep them in the folder, --set {path}=null",
        )
        for path in PLACES
        if (place := value_at(identity.manifest, path)) is not None
        and not any(tuple(path.split("."))[: len(at)] == at for at in given)
    ]
    if wrong:
        raise InvalidManifest("the backup names places to write to", wrong)


async def _fill(index: Index, place: BackupPlace, job: RLJob, folder: RunFolder) -> None:
    create_folder(folder.path)
    async with streams_at_rest(folder.nats, job.spec.nats.url, os.environ) as url:
        config = resolve_job(job, folder.defaults(url)).config
        async with opened_store(config, url) as store:
            if used := await used_streams(store):
                raise SpecError(
                    "spec.nats.url",
                    f"the server at {job.spec.nats.url} has streams of this job already ({', '.join(used)}): name "
                    "another server with --set spec.nats.url=…, or none with --set spec.nats.url=null",
                )
            # The ledger last: without it, there is no job.
            for channel in sorted(index.streams, key=lambda one: one is Channel.LEDGER):
                await fill_stream(index, place, store, channel, grows=False)
            connect = partial(job_store, config, url)
            transport, uri = config.spec.weights.transport, config.weights_uri
            with closing(open_transport(transport, uri=uri, connect=connect)) as weights:
                await fill_folders(index, place, config, weights)
