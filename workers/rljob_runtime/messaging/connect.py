"""Makes message stores on a job's streams: at an address, or as a role with what its environment names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.stream_names import inbox_of
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_runtime.messaging.nats.store import NatsStore


def job_store(
    config: JobConfig,
    url: str,
    *,
    role: str | None = None,
    credentials: str | None = None,
    token_path: str | None = None,
    create: bool = True,
    connect: float | None = None,
    attempt: float = 5.0,
) -> NatsStore:
    """A store on a job's streams, not yet open.

    Args:
        config: of the job.
        url: of the NATS server.
        role: whose inbox the answers come to; None where the server asks for no credentials.
        credentials: of the role; they also hold the certificates that the server's is verified by.
        token_path: see `NatsStore`.
        create: see `NatsStore`.
        connect: see `NatsStore`.
        attempt: see `NatsStore`.
    """
    return NatsStore(
        url,
        subject=config.subject,
        stream_prefix=config.stream_prefix,
        trajectory_bytes=trajectory_stream_bytes(config.spec),
        replicas=config.replicas,
        credentials=credentials,
        token_path=token_path,
        inbox="_INBOX" if role is None else inbox_of(config.uid, role),
        create=create,
        connect=connect,
        attempt=attempt,
    )


def role_store(
    config: JobConfig,
    role: str,
    *,
    environment: Mapping[str, str] = os.environ,
    create: bool = False,
    connect: float | None = None,
    attempt: float = 5.0,
) -> NatsStore:
    """A store on a job's streams as a worker's process has it, not yet open.

    Args:
        config: see `job_store`.
        role: see `job_store`.
        environment: the worker's, with the address `RLJOB_NATS_URL`, the credentials `RLJOB_NATS_CREDENTIALS`, and the
            path of their token's file, `RLJOB_NATS_JWT`, if they have none that lasts.
        create: see `NatsStore`. Without effect in a pool at a site, whose streams are others, and exist before.
        connect: see `NatsStore`.
        attempt: see `NatsStore`.

    Raises:
        SpecError: the environment names no server.
    """
    url = environment.get(worker_protocol.NATS_URL)
    if not url:
        raise SpecError(worker_protocol.NATS_URL, "is not set: give the address of the job's NATS server")
    credentials = environment.get(worker_protocol.NATS_CREDENTIALS) or None
    return job_store(
        config,
        url,
        role=role,
        credentials=credentials,
        token_path=environment.get(worker_protocol.NATS_JWT) or None,
        create=create and not config.spec.rollout.pool_sites.get(environment.get(worker_protocol.POOL, "")),
        connect=connect,
        attempt=attempt,
    )
