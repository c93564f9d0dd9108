"""The streams of a run's folder: the server that has them, and a store on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rljob_cli.run_folder.embedded_nats import running_url, streams_at_rest
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.connect import job_store
from rljob_runtime.messaging.nats.store import NatsStore


@asynccontextmanager
async def served_streams(folder: RunFolder, identity: Identity) -> AsyncIterator[str]:
    """Yield the URL of a server that has the job's streams; start one if the run is over, and hold the folder's lock.

    Raises:
        SpecError: the folder holds no streams, or the run in it starts or ends just now.
        StoreUnavailable: no server starts on the streams.
    """
    if identity.nats_url:
        yield identity.nats_url
        return
    if folder.in_use():
        url = running_url(folder.nats)
        if url is None:
            raise SpecError(
                str(folder.path), "the run in it starts or ends just now: try again in a few seconds"
            )
        yield url
        return
    if not (folder.nats / "store").is_dir():
        raise SpecError(str(folder.path), "holds no streams: nats/store is missing")
    with folder.locked():
        async with streams_at_rest(folder.nats, None, os.environ) as url:
            yield url


@asynccontextmanager
async def opened_store(config: JobConfig, url: str) -> AsyncIterator[NatsStore]:
    """Open the message store of a job on the NATS server at `url`, and close it at the end."""
    store = job_store(config, url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def store_of(
    identity: Identity, url: str, *, patience: float = 60.0, connect: float | None = None
) -> NatsStore:
    """A store, not yet open, on the streams of the job that a folder belongs to: it creates none of them.

    The job's manifest is not read: it may be damaged, or newer than its streams.

    Args:
        identity: of the job.
        url: of the NATS server.
        patience: see `NatsStore`.
        connect: see `NatsStore`.
    """
    names = StreamNames.of_job(namespace=identity.namespace, job=identity.name, uid=identity.uid)
    return NatsStore(
        url,
        subject=names.subject,
        stream_prefix=names.prefix,
        create=False,
        patience=patience,
        connect=connect,
    )
