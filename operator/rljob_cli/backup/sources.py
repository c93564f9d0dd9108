"""The jobs that `rljob backup` can copy: that of a run's output folder, and one on a cluster, from inside a pod."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rljob_cli.backup.files import JobFiles
from rljob_cli.backup.place import BackupPlace
from rljob_cli.backup.take import BackedUpJob, RunReports, Taken, take
from rljob_cli.cluster_job import manifest_of
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.job_file import stored_job
from rljob_cli.run_folder.streams import opened, served_streams, store_of
from rljob_core.config import JobConfig
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.locations import local_path, model_folder
from rljob_runtime.messaging.connect import role_store
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.model.identity import model_identity
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.trainer_log import TrainerLogCopy, TrainerLogObjects
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.weights.create import open_transport


async def back_up_run(folder: RunFolder, place: BackupPlace) -> Taken:
    """Back up the job in an output folder, whether it runs or not.

    Raises:
        SpecError: the folder holds no job; or see `take`, as for what else is raised.
    """
    identity = folder.required_identity()
    over = not folder.in_use()
    job = BackedUpJob(identity.namespace, identity.name, identity.uid, partial(_reports, folder, over=over))
    async with served_streams(folder, identity) as url:
        config = resolve_job(identity.stamp(stored_job(identity)), folder.defaults(url)).config
        return await _take(job, config, partial(store_of, identity, url), place)


async def back_up_configured(
    config: JobConfig, place: BackupPlace, environment: Mapping[str, str] = os.environ
) -> Taken:
    """Back up a job on a cluster, from inside a pod like the audit's (`rljob_operator.children.audit_pod`).

    Args:
        config: the job's configuration.
        place: of the backup.
        environment: environment variables of a worker, with the reader's credentials.

    Raises:
        SpecError: the environment names no server, or the model is not there; or see `take`, as for other errors.
    """
    connect = partial(role_store, config, "reader", environment=environment)
    # What `rljob run` would have written: the backup may be restored into an output folder.
    manifest = manifest_of(config).model_dump(mode="json", by_alias=True)
    model = model_identity(model_folder(config))
    nats_url = config.spec.nats.url or ""
    identity = Identity(config.job, config.namespace, config.uid, model, nats_url, manifest, given=manifest)
    job = BackedUpJob(config.namespace, config.job, config.uid, lambda: RunReports(asdict(identity)))
    return await _take(job, config, connect, place)


async def _take(
    job: BackedUpJob, config: JobConfig, connect: Callable[[], NatsStore], place: BackupPlace
) -> Taken:
    weights = open_transport(config.spec.weights.transport, uri=config.weights_uri, connect=connect)
    checkpoints = open_checkpoints(config.checkpoint_uri, model_path=Path())
    with place.locked(), closing(weights), TemporaryDirectory(prefix="rljob-trainer-log-") as copy:
        files = JobFiles(weights, checkpoints, Path(copy))
        if is_object_store(config.trainer_log_uri):
            log = TrainerLogCopy(TrainerLogObjects(config.trainer_log_uri), Path(copy))
            files = replace(files, copy_log=log.refresh)
        else:
            files = replace(files, trainer=local_path(config.trainer_log_uri))
        async with opened(connect()) as store:
            return await take(job, store, files, place)


def _reports(folder: RunFolder, *, over: bool) -> RunReports:
    identity = folder.required_identity()  # it may have changed
    summary = folder.earlier_summary() or None if over else None
    return RunReports(asdict(identity), summary, folder.earlier_engines())
