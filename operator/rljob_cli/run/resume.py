"""`rljob run --resume` before any role starts.

It finds out whether a finished job has lost anything since, revokes versions (`--from-version`), or opens an ended job
again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import closing
from functools import partial

from rljob_cli.run_folder.embedded_nats import streams_at_rest
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.streams import UNKNOWN_DAMAGE, broken_streams, opened, opened_store, store_of
from rljob_core.config import JobConfig
from rljob_core.ports import Channel, MessageStore, WeightStore
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.locations import local_path
from rljob_runtime.messaging.connect import job_store
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.roles.offline_rollback import Reopened, RolledBack, reopen, roll_back
from rljob_runtime.training.checkpoint_base import Checkpoints
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.weights.create import open_store


def lost_since_its_end(folder: RunFolder, identity: Identity, steps: int) -> dict[str, str]:
    """The streams that a run which has succeeded lost since, and why; none are known of a server of the user's.

    A server is asked, as only that shows what it loads of files that are damaged.

    Args:
        folder: of the run, locked by the caller.
        identity: of its job.
        steps: that it has trained.

    Raises:
        CorruptLedger, StoreUnavailable: the ledger cannot be read.
    """
    return {} if identity.nats_url else asyncio.run(_lost_since_its_end(folder, identity, steps))


async def _lost_since_its_end(folder: RunFolder, identity: Identity, steps: int) -> dict[str, str]:
    names = StreamNames.of_job(namespace=identity.namespace, job=identity.name, uid=identity.uid)
    lost = broken_streams(folder, identity)
    async with (
        streams_at_rest(folder.nats, None, os.environ) as url,
        opened(store_of(identity, url)) as store,
    ):
        absent = [channel for channel in Channel if not await store.exists(channel)]
        lost = {names.stream(channel): UNKNOWN_DAMAGE for channel in absent} | lost
        if Channel.LEDGER not in absent:
            state = await Ledger(store, job=identity.uid, instance=_instance()).replay()
            if state.finished is None or state.version < steps:
                lost[names.stream(Channel.LEDGER)] = "it has lost its end, with that of the job"
    return lost


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
        async with opened_store(config, url) as store:
            with closing(_weights(config, url)) as weights:
                return await roll_back(
                    config, store, weights, _checkpoints(config), version=version, instance=_instance()
                )


async def reopen_ended(config: JobConfig, url: str, store: MessageStore) -> Reopened | None:
    """Let a job that has failed, or is to train more steps, continue from its newest version; None if it need not.

    Args:
        config: of the job.
        url: of the NATS server with the job's streams.
        store: the job's streams, open; none of its roles runs.

    Raises:
        CorruptLedger, StoreUnavailable: the ledger cannot be read.
    """
    with closing(_weights(config, url)) as weights:
        return await reopen(config, store, weights, _checkpoints(config), instance=_instance())


def _weights(config: JobConfig, url: str) -> WeightStore:
    connect = partial(job_store, config, url)
    return open_store(config.spec.weights.transport, uri=config.weights_uri, connect=connect)


def _checkpoints(config: JobConfig) -> Checkpoints:
    return open_checkpoints(
        config.checkpoint_uri, model_path=local_path(config.spec.model.uri, field="spec.model.uri")
    )


def _instance() -> str:
    return f"rljob-run.{secrets.token_hex(4)}"


def summary(done: RolledBack) -> str:
    """One line that says what was revoked."""
    optimizer = "fresh" if done.optimizer is None else f"of version {done.optimizer}"
    return (
        f"gone back to version {done.version}: {done.revoked} versions are revoked, and the {done.trajectories} "
        f"trajectories that they were trained on; optimizer state: {optimizer}"
    )


def continued(reopened: Reopened, steps: int) -> str:
    """One line that says why an ended job continues.

    Args:
        reopened: the job's former end.
        steps: `spec.steps`.
    """
    if not reopened.failure:
        return f"the job was finished after {reopened.version} steps; it is extended to {steps}"
    return (
        f"the run before this one failed at step {reopened.version} ({reopened.failure}); it is tried again from "
        "there, with the next prompts"
    )
