"""The streams of a run's folder: the server that has them, and a store on it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rljob_cli.run_folder.embedded_nats import EmbeddedServers, running_url, streams_at_rest
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError, StoreUnavailable
from rljob_core.site_streams import SiteStreams
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_operator.nats.permissions import Holder
from rljob_runtime.messaging.connect import job_store
from rljob_runtime.messaging.nats.site_streams import join_site
from rljob_runtime.messaging.nats.store import NatsStore

_DESCRIPTION = ("meta.inf", "meta.sum")
"""Files in which a nats-server describes a stream; without either, it passes the stream over."""
UNKNOWN_DAMAGE = "its files do not belong together"
"""Of a stream that a server passes over, and whose description reads well."""


@asynccontextmanager
async def served_streams(folder: RunFolder, identity: Identity, *, whole: bool = True) -> AsyncIterator[str]:
    """Yield the URL of a server that has the job's streams; start one if the run is over, and hold the folder's lock.

    Where the streams cannot be written, as on a read-only mount, the server has a copy of them.

    Args:
        folder: of the run.
        identity: of its job.
        whole: whether the streams of a run that has begun must be there; without them, the server has none.

    Raises:
        SpecError: the folder holds no streams.
        StoreUnavailable: no server starts on the streams, or the run in the folder starts or ends just now.
        OSError: there is no room for a copy.
    """
    folder.check_plain()
    if identity.nats_url:
        yield identity.nats_url
        return
    if folder.in_use():
        url = running_url(folder.nats)
        if url is None:
            raise StoreUnavailable(
                f"{folder.path}: the run in it starts or ends just now: try again in a few seconds"
            )
        yield url
        return
    if not (folder.nats / "store").is_dir() and (whole or not folder.has_begun()):
        raise SpecError(str(folder.path), "holds no streams: nats/store is missing")
    with _for_a_server(folder) as place:
        async with streams_at_rest(place, None, os.environ) as url:
            yield url


@contextmanager
def _for_a_server(folder: RunFolder) -> Iterator[Path]:
    """A folder with the streams of a run that is over where a server may write: the run's own, locked, or a copy."""
    if (folder.nats / "store").is_dir() and _is_writable(folder):
        with folder.locked():
            yield folder.nats
        return
    with TemporaryDirectory(prefix="rljob-streams-") as scratch:
        _copy_readable(folder.nats / "store", Path(scratch) / "store")
        yield Path(scratch)


def _is_writable(folder: RunFolder) -> bool:
    lock = folder.path / ".lock"
    return all(
        os.access(path, os.W_OK)
        for path in (folder.path, *([lock] if lock.exists() else []), folder.nats, *folder.nats.rglob("*"))
    )


def _copy_readable(source: Path, target: Path) -> None:
    """Copy a folder; what this user may not read is left out, and is then missing from the streams."""
    for place, _, files in os.walk(source):
        copied = target / Path(place).relative_to(source)
        copied.mkdir(parents=True, exist_ok=True)
        for name in files:
            with suppress(PermissionError):
                shutil.copyfile(Path(place) / name, copied / name)


def broken_streams(folder: RunFolder, identity: Identity) -> dict[str, str]:
    """The streams of a run that is over that a server would pass over, and why, as far as their files tell."""
    if identity.nats_url:
        return {}
    names = StreamNames.of_job(namespace=identity.namespace, job=identity.name, uid=identity.uid)
    found = {stream: _broken(folder, stream) for stream in names.all_streams}
    return {stream: why for stream, why in found.items() if why}


def is_complete(place: Path) -> bool:
    """Whether a stream's folder has what its server needs; while it empties the stream, it may have no messages."""
    return (place / "meta.inf").exists() and (place / "msgs").is_dir()


def _broken(folder: RunFolder, stream: str) -> str:
    place = next(folder.nats.glob(f"store/jetstream/*/streams/{stream}"), None)
    if place is None:
        return "its folder is gone"
    for name in _DESCRIPTION:
        try:
            content = (place / name).read_bytes()
            if not content:
                return f"{name}, which describes it, is empty, as after a power cut"
            if name.endswith(".inf"):
                json.loads(content)
        except FileNotFoundError:
            return f"{name}, which describes it, is gone"
        except OSError as error:
            return f"{name}, which describes it, cannot be read: {error.strerror}"
        except ValueError:
            return f"{name}, which describes it, is damaged"
    return ""


def opened_store(config: JobConfig, url: str) -> AbstractAsyncContextManager[NatsStore]:
    """The message store of a job on the NATS server at `url`, open until the context ends."""
    return opened(job_store(config, url))


@asynccontextmanager
async def opened(store: NatsStore) -> AsyncIterator[NatsStore]:
    """Open a message store, and close it at the end."""
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
