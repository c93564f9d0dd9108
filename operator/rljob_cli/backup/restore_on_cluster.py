"""Fills a job on a cluster from a backup, from inside a pod, while the job is suspended and before it first runs.

The job has a UID of its own, and so have its streams. The ledger stays as it was, claims of the former job included. A
claim is added by which this job continues it (`EpochClaimed.former`): a reader of the ledger finds in it to which job
it belongs.

The ledger comes first and this claim after everything else. So a restore that breaks off leaves either nothing, or a
ledger that this job's coordinator refuses as another job's.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

from rljob_cli.backup.contents import fill_folders, fill_stream, identity_in, required_index, used_streams
from rljob_cli.backup.index import Index
from rljob_cli.backup.place import BackupPlace
from rljob_cli.cluster_job import manifest_of
from rljob_cli.manifest.differences import fixed_differences
from rljob_cli.run_folder.streams import opened
from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.job_state.versioned import VersionedState
from rljob_core.ports import Channel
from rljob_core.records import EpochClaimed
from rljob_runtime.locations import model_folder
from rljob_runtime.messaging.connect import role_store
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.model.identity import model_identity
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.weights.create import open_transport
from rljob_runtime.weights.transport import Transport

_ROLE = "restorer"
_PLACES = re.compile(
    r"spec\.(data\.dataset|evaluation\.(sets\.[^.]+\.)?data\.dataset|managedBy|trainer\.checkpoint\.uri|weights\.uri)"
)
"""Fields that name what another cluster has under another name."""


async def restore_configured(
    place: BackupPlace, config: JobConfig, environment: Mapping[str, str] = os.environ
) -> Index:
    """Fill a job that has never run.

    Args:
        place: of the backup.
        config: the job's configuration.
        environment: environment variables of a worker, with the restorer's credentials.

    Returns:
        The backup's index.

    Raises:
        SpecError: there is no backup; it is of another model or with other settings that must not change; or the job
            has run, or was filled before.
        BackupDamaged: the backup is not what its index names.
        StoreFull: the job's streams have no room for it, and the operator gives none.
        StorageRefused, StoreUnavailable: of the backup, or of the job's storage.
    """
    index = required_index(place)
    _check_same(index, config)
    # Where the operator issues no credentials, a job creates and enlarges its streams itself.
    own = config.spec.nats.credentials_secret is not None or not environment.get(
        worker_protocol.NATS_CREDENTIALS
    )
    connect = partial(role_store, config, _ROLE, environment=environment, create=own)
    async with opened(connect()) as store:
        transport, uri = config.spec.weights.transport, config.weights_uri
        with closing(open_transport(transport, uri=uri, connect=connect)) as weights:
            await _check_unused(store, weights, config)
            for channel in sorted(index.streams, key=lambda one: one is not Channel.LEDGER):
                await fill_stream(index, place, store, channel, grows=not own)
            await fill_folders(index, place, config, weights)
        await _take_over(store, former=index.uid, job=config.uid)
    return index


def _check_same(index: Index, config: JobConfig) -> None:
    """Check that the job's settings are those that the ledger, weights and checkpoints of the backup rest on."""
    identity = identity_in(index)
    if model_identity(model_folder(config)) != identity.model:
        raise SpecError(
            "spec.model.uri", "names another model than the one that the backup's job started from"
        )
    for path, because, before, now in fixed_differences(identity.manifest, manifest_of(config)):
        if not _PLACES.fullmatch(path):
            raise SpecError(
                path,
                f"is {now!r}, and {before!r} in the backup ({because}): create the job with the backup's value",
            )


async def _check_unused(store: NatsStore, weights: Transport, config: JobConfig) -> None:
    used = list(map(str, await used_streams(store)))
    used += ["weights"] if await asyncio.to_thread(weights.listing) else []
    used += ["checkpoints"] if open_checkpoints(config.checkpoint_uri, model_path=Path()).keys() else []
    if used:
        raise SpecError(
            "DIR",
            f"the job {config.job} has run, or a restore of it broke off: it has {', '.join(used)}. Delete the RLJob, "
            "create it again with spec.suspend: true, and restore it before it runs",
        )


async def _take_over(store: NatsStore, *, former: str, job: str) -> None:
    """Claim the former job's ledger for this one."""
    instance = f"{_ROLE}-{uuid4().hex}"
    ledger = Ledger(store, job=former, instance=instance)
    writer = (await ledger.replay(VersionedState())).writer.successor(instance)
    await ledger.claim(writer, [EpochClaimed(writer.number, instance, job, former=former)])
