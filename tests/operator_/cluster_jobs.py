"""Jobs on nats-servers that ask for credentials: their streams as the operator makes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.waiting import in_time, until_async

from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.nats.accounts import Seeds
from rljob_operator.nats.accounts import issuer as issuer_of
from rljob_operator.nats.credentials import (
    Issuer,
    JobKeys,
    job_token,
    operator_credentials,
    stream_credentials,
)
from rljob_operator.nats.jwt import credentials_file
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.store import NatsStore

SECONDS = 300.0
"""After which a test that waits for something gives up."""
SEEDS = Seeds.complete({}, os.urandom)
ISSUER = issuer_of(SEEDS)
_BYTES = 64 << 20


def lasting_credentials(
    issuer: Issuer, holder: Holder, *, namespace: str, job: str, uid: str, generation: int = 0
) -> str:
    """A role's credentials with a token that does not expire, in one file."""
    keys = JobKeys(issuer, namespace, job, uid, generation)
    return credentials_file(job_token(keys, holder), keys.user(holder)) + issuer.trusted


@asynccontextmanager
async def operator(
    url: str, folder: Path, *, issuer: Issuer = ISSUER, **options: Any
) -> AsyncIterator[JobStreams]:
    """The operator's part, connected to one server."""
    credentials = folder / "operator.creds"
    credentials.write_text(operator_credentials(issuer))
    connection = NatsConnection(url, credentials=str(credentials), authority=issuer.trusted)
    connected = asyncio.Event()
    connection.on_outage = connected.set
    running = asyncio.create_task(connection.run())
    try:
        await in_time(connected.wait())
        yield JobStreams(connection, issuer, **options)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def job_of(uid: str, replicas: int | None = None, *, name: str = "j") -> RLJob:
    """The smallest job."""
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "spec": {
                "steps": 1,
                "model": {"uri": "/model"},
                "data": {"dataset": "chain_sum"},
                "rollout": {"pools": [{"name": "cpu", "replicas": 1}]},
                "nats": {"replicas": replicas},
            },
        }
    )


async def prepare(streams: JobStreams, job: RLJob, size: int = _BYTES) -> None:
    """Prepare a job's streams, as often as it takes: servers may still be joining each other, or be slow."""
    await until_async(lambda: streams.prepare(job, size))


async def refusal(streams: JobStreams, job: RLJob, size: int) -> str:
    """What the operator says of a job whose streams it refuses; a slow server gives it another trouble before."""

    async def said() -> str:
        assert not await streams.prepare(job, size)
        trouble = streams.trouble(job)
        return trouble.message if trouble is not None and trouble.reason == "StreamsRefused" else ""

    return await until_async(said, shown=lambda: streams.trouble(job))


async def replicas_of(url: str, uid: str) -> dict[str, Any]:
    """The number of replicas, by stream, and of the reward workers' queue."""
    names = StreamNames.of_job(namespace="default", job="j", uid=uid)
    credentials = stream_credentials(JobKeys(ISSUER, "default", "j", uid)) + ISSUER.trusted
    connection = Connection(url, patience=SECONDS, attempt=2, credentials=credentials)
    await connection.open()
    try:
        found: dict[str, Any] = {}
        for name in names.all_streams:
            found[name] = (await connection.call(f"STREAM.INFO.{name}", {}))["config"]["num_replicas"]
        queue = f"CONSUMER.INFO.{names.stream(Channel.TRAJECTORIES)}.reward"
        cluster = (await connection.call(queue, {})).get("cluster") or {}
        return found | {"queue": 1 + len(cluster.get("replicas") or [])}
    finally:
        await connection.close()


def role_store(
    url: str, uid: str, holder: Holder, *, issuer: Issuer = ISSUER, patience: float = SECONDS
) -> NatsStore:
    """A role's store at one server, not yet open."""
    names = StreamNames.of_job(namespace="default", job="j", uid=uid)
    return NatsStore(
        url,
        subject=names.subject,
        stream_prefix=names.prefix,
        credentials=lasting_credentials(issuer, holder, namespace="default", job="j", uid=uid),
        inbox=inbox_of(uid, holder),
        create=False,
        patience=patience,
    )
