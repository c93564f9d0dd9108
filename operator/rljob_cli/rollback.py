"""`rljob run --resume --from-version`: revokes later versions in a run's folder before any of its processes starts."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import closing
from functools import partial

from rljob_cli.embedded_nats import streams_at_rest
from rljob_cli.run_folder import RunFolder
from rljob_core.spec import RLJob
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.locations import local_path
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.roles.rollback import RolledBack, roll_back
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.weights.create import open_store


def go_back_to(version: int, job: RLJob, folder: RunFolder) -> RolledBack:
    """Revoke all versions of a job after `version`.

    Args:
        version: the version to continue from.
        job: the job, with its uid.
        folder: the job's folder, locked by the caller.

    Raises:
        SpecError: the job cannot continue from that version; the message names the versions that it can.
        CorruptLedger, StoreUnavailable: the ledger cannot be read.
    """
    return asyncio.run(_go_back(version, job, folder))


async def _go_back(version: int, job: RLJob, folder: RunFolder) -> RolledBack:
    async with streams_at_rest(folder.nats, job.spec.nats.url, os.environ) as url:
        config = resolve_job(job, folder.defaults(url)).config
        connect = partial(NatsStore, url, subject=config.subject, stream_prefix=config.stream_prefix)
        weight_store = open_store(config.spec.weights.transport, uri=config.weights_uri, connect=connect)
        checkpoints = CheckpointStore(
            config.checkpoint_uri, model_path=local_path(config.spec.model.uri, field="spec.model.uri")
        )
        store = connect()
        await store.open()
        try:
            with closing(weight_store) as weights:
                return await roll_back(
                    config,
                    store,
                    weights,
                    checkpoints,
                    version=version,
                    instance=f"rljob-run.{secrets.token_hex(4)}",
                )
        finally:
            await store.close()


def summary(done: RolledBack) -> str:
    """One line that says what was revoked."""
    optimizer = "fresh" if done.optimizer is None else f"of version {done.optimizer}"
    return (
        f"gone back to version {done.version}: {done.revoked} versions are revoked, and the {done.trajectories} "
        f"trajectories that they were trained on; optimizer state: {optimizer}"
    )
