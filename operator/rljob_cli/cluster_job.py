"""A job on a cluster, as a pod that runs one command on it sees it: its configuration, and its streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import API_VERSION, RLJob
from rljob_core.stream_names import inbox_of
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_runtime.messaging.nats.store import NatsStore


def job_config(path: Path) -> JobConfig:
    """The configuration of a job, from the file that its workers load.

    Raises:
        SpecError: the file is no such configuration.
    """
    try:
        return JobConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise SpecError(str(path), "is no configuration of a job; give the output folder of a run") from error


def manifest_of(config: JobConfig) -> RLJob:
    """The RLJob that a configuration is of, with the paths that its pods see."""
    return RLJob.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "metadata": {"name": config.job, "namespace": config.namespace},
            "spec": config.spec,
        }
    )


def job_store(
    config: JobConfig, environment: Mapping[str, str], role: str, *, create: bool = False
) -> Callable[[], NatsStore]:
    """What makes a store on a job's streams, not yet open.

    Args:
        config: of the job.
        environment: environment variables of a worker, with the role's credentials.
        role: whose inbox the answers come to.
        create: create the streams where they do not exist.

    Raises:
        SpecError: the environment names no server.
    """
    url = environment.get(worker_protocol.NATS_URL)
    if not url:
        raise SpecError(worker_protocol.NATS_URL, "is not set: give the address of the job's NATS server")
    return partial(
        NatsStore,
        url,
        subject=config.subject,
        stream_prefix=config.stream_prefix,
        trajectory_bytes=trajectory_stream_bytes(config.spec),
        replicas=config.replicas,
        credentials=environment.get(worker_protocol.NATS_CREDENTIALS),
        inbox=inbox_of(config.uid, role),
        create=create,
    )
