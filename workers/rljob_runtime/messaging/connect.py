"""Opens a role's connection to its job's streams, with the address and credentials in its environment."""

from __future__ import annotations

import os

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.stream_names import inbox_of
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_runtime.messaging.nats.store import NatsStore


def message_store(
    config: JobConfig,
    role: str,
    *,
    create: bool = False,
    connect: float | None = None,
    attempt: float = 5.0,
) -> NatsStore:
    """A message store on the server of `RLJOB_NATS_URL` with the credentials of `RLJOB_NATS_CREDENTIALS`, not yet open.

    Args:
        config: of the job.
        role: whose inbox the answers come to.
        create: see `NatsStore`.
        connect: see `NatsStore`.
        attempt: see `NatsStore`.
    """
    return NatsStore(
        os.environ[worker_protocol.NATS_URL],
        subject=config.subject,
        stream_prefix=config.stream_prefix,
        trajectory_bytes=trajectory_stream_bytes(config.spec),
        replicas=config.replicas,
        credentials=os.environ.get(worker_protocol.NATS_CREDENTIALS) or None,
        inbox=inbox_of(config.uid, role),
        create=create,
        connect=connect,
        attempt=attempt,
    )
