"""The streams of a run's folder: the server that has them, and a store on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rljob_cli.run_folder.embedded_nats import EmbeddedServers, running_url, streams_at_rest
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.site_streams import SiteStreams
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_operator.nats.permissions import Holder
from rljob_runtime.messaging.connect import job_store
from rljob_runtime.messaging.nats.site_streams import join_site
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


async def join_sites(config: JobConfig, servers: EmbeddedServers) -> None:
    """Let the servers of sites have the streams of a job, of which the hub's server has its own.

    Raises:
        StoreUnavailable: a server does not answer, or refuses.
    """
    names, size = StreamNames(config.subject, config.stream_prefix), trajectory_stream_bytes(config.spec)
    for site, url in servers.sites.items():
        link = config.links.get(site)
        streams = SiteStreams(
            names,
            site,
            size,
            bits_per_second=link.bits_per_second if link is not None else None,
            weights=not config.spec.weights.needs_uri,
        )
        await join_site(servers.url, url, streams)


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
        credentials=identity.viewer or None,
        inbox=inbox_of(identity.uid, Holder.VIEWER) if identity.viewer else "_INBOX",
    )
