"""`rljob run --resume` before any role starts: it revokes versions (`--from-version`), or opens an ended job again."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import closing
from functools import partial

from rljob_cli.run_folder.embedded_nats import streams_at_rest
from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.run_folder.streams import opened_store
from rljob_core.config import JobConfig
from rljob_core.ports import MessageStore, WeightStore
from rljob_core.spec import RLJob
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.locations import local_path
from rljob_runtime.messaging.connect import job_store
from rljob_runtime.roles.offline_rollback import Reopened, RolledBack, reopen, roll_back
from rljob_runtime.training.checkpoint_base import Checkpoints
from rljob_runtime.training.checkpoints import open_checkpoints
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
