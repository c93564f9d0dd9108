"""The operator's requests to NATS about one job: create its accounts and streams, enlarge and read them, remove all.

Where the operator issues the credentials of jobs, each job has accounts of its own (`nats.job_accounts`): the operator
connects to the one with the streams for as long as a request takes. On a server that authenticates nobody, the job's
coordinator creates the streams, and the operator uses its own connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats.errors
from nats.aio.client import Client, RawCredentials
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS
from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_core.stream_definitions import stream_definitions
from rljob_core.stream_names import StreamNames
from rljob_operator.decisions.pods import Trouble
from rljob_operator.nats.credentials import Issuer, JobKeys, stream_credentials
from rljob_operator.nats.job_accounts import JobAccounts, job_accounts
from rljob_operator.nats.permissions import REPORT
from rljob_operator.reconcile.nats_connection import NatsConnection

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
_STREAM_EXISTS = 10058
#: The server's errors if it has no room: in memory, on its disk, by its limits, by those of the account.
_NO_ROOM = frozenset({10002, 10023, 10028, 10047, 10122})


class Refused(Exception):
    """The server does not do what was asked; the message is for people."""


class JobStreams:
    """Requests about the accounts and streams of jobs; those on another server are left to that server's owner.

    Args:
        connection: to the server, as a user who may create accounts where there is an issuer.
        issuer: what accounts and credentials are made from; None if the server authenticates nobody.
    """

    def __init__(self, connection: NatsConnection, issuer: Issuer | None = None) -> None:
        self._connection = connection
        self._issuer = issuer
        self._refusals: dict[str, str] = {}
        """By UID, why a job has not all of its streams."""

    def trouble(self, job: RLJob) -> Trouble | None:
        """Why a job cannot begin; None if no stream was refused when they were last prepared."""
        refusal = self._refusals.get(job.metadata.uid or "")
        return None if refusal is None else Trouble("StreamsRefused", refusal)

    async def prepare(self, job: RLJob, size: int) -> bool:
        """Let a job have its accounts and streams, and room for `size` bytes of trajectories.

        Returns True once it has, until the server is another one. Whatever exists stays as it is, and grows at most.
        """
        if not self._serves(job):
            return True  # the coordinator's pod creates and enlarges them
        uid = job.metadata.uid or ""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                done = await self._prepare(job, size)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            log.warning("%s/%s: its streams: %r", job.metadata.namespace, job.metadata.name, error)
            return False
        except Refused as error:
            log.warning("%s/%s: its streams: %s", job.metadata.namespace, job.metadata.name, error)
            self._refusals[uid] = str(error)
            return False
        self._refusals.pop(uid, None)
        return done

    async def _prepare(self, job: RLJob, size: int) -> bool:
        system = self._connection.client
        if system is None:
            return False
        if self._issuer is None:
            return await _enlarge(system, _names(job), size)
        for token in self._accounts(job, self._issuer).tokens:
            await _ask(system, "$SYS.REQ.CLAIMS.UPDATE", token.encode())
        async with self._client(job) as client:
            for definition in stream_definitions(_names(job), trajectory_bytes=size, metrics_to=REPORT):
                await _create(client, definition)
            return await _enlarge(client, _names(job), size)

    async def remove(self, job: RLJob) -> None:
        """Delete all streams of a job, and its accounts.

        Raises:
            OSError: the server cannot be reached, or refuses.
        """
        if not self._serves(job):
            return
        client = self._connection.client
        if client is None:
            raise OSError(self._connection.unreachable or "not connected")
        try:
            if self._issuer is None:
                await _delete_streams(client, _names(job))
            else:
                accounts = self._accounts(job, self._issuer)
                # The server would keep the streams of an account that it does not know any more.
                await _ask(client, f"$JS.API.ACCOUNT.PURGE.{accounts.streams}", b"")
                await _ask(client, "$SYS.REQ.CLAIMS.DELETE", accounts.deletion.encode())
        except (TimeoutError, nats.errors.Error, Refused) as error:
            raise OSError(f"{error!r}") from error
        self._refusals.pop(job.metadata.uid or "", None)

    async def engine_loads(self, job: RLJob) -> dict[str, int]:
        """By pod, the number of trajectories that its engine generates or has queued; empty if it cannot be read."""
        loads: dict[str, int] = {}
        if not self._serves(job):
            return loads
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._client(job) as client:
                bucket = await client.jetstream().key_value(_names(job).signal_stream.removeprefix("KV_"))
                async for entry in await bucket.watch(f"{ENGINE_SIGNALS}>", ignore_deletes=True):
                    if entry is None:  # the end of what is stored now
                        break
                    signal = ENGINE_SIGNAL.validate_json(entry.value or b"")
                    pod = signal.engine.rpartition(".")[0]
                    loads[pod] = signal.running + signal.waiting
        except (TimeoutError, OSError, nats.errors.Error, ValidationError) as error:
            log.info("the engine loads of %s cannot be read: %r", job.metadata.name, error)
        return loads

    def _serves(self, job: RLJob) -> bool:
        """Whether the operator has access to the job's streams."""
        return self._connection.serves(job) and job.spec.nats.credentials_secret is None

    def _accounts(self, job: RLJob, issuer: Issuer) -> JobAccounts:
        return job_accounts(_keys(job, issuer), revision=job.metadata.generation or 0)

    @asynccontextmanager
    async def _client(self, job: RLJob) -> AsyncIterator[Client]:
        """A client in the account of the job's streams.

        Raises:
            OSError: the server cannot be reached.
            nats.errors.Error: it refuses.
        """
        if self._issuer is None:
            if self._connection.client is None:
                raise OSError(self._connection.unreachable or "not connected")
            yield self._connection.client
            return
        client = Client()
        credentials = RawCredentials(stream_credentials(_keys(job, self._issuer)))
        try:
            await client.connect(
                self._connection.url,
                user_credentials=credentials,
                allow_reconnect=False,
                connect_timeout=2,
                error_cb=_ignore,
            )
            yield client
        finally:
            with suppress(TimeoutError, OSError, nats.errors.Error):
                await client.close()


async def _create(client: Client, definition: Mapping[str, Any]) -> None:
    """Create a stream, if there is none of its name.

    Raises:
        Refused: the server has no room, or does not accept the definition.
    """
    answer = await _stream_request(client, "CREATE", definition["name"], definition)
    if answer.get("did_create"):
        # A server that starts passes over a stream whose description a power cut has damaged. Created again, the stream
        # has its messages, but only an update writes the whole description again.
        answer = await _stream_request(client, "UPDATE", definition["name"], answer["config"])
    error = answer.get("error")
    if error is not None and error.get("err_code") != _STREAM_EXISTS:
        raise Refused(f"the stream {definition['name']} cannot be created: {_reason(error)}")


async def _enlarge(client: Client, names: StreamNames, size: int) -> bool:
    """Enlarge the trajectory stream to at least `size` bytes; False if the server refuses, or has no stream yet."""
    stream = names.stream(Channel.TRAJECTORIES)
    info = await _stream_request(client, "INFO", stream, {})
    if "error" in info:
        return False  # it will be created with this size
    if not 0 < info["config"]["max_bytes"] < size:
        return True
    answer = await _stream_request(client, "UPDATE", stream, {**info["config"], "max_bytes": size})
    if (error := answer.get("error")) is not None:
        # The coordinator goes on with what there is, and says so.
        log.warning("%s cannot be enlarged to %d MB: %s", stream, size >> 20, _reason(error))
    return error is None


def _reason(error: Mapping[str, Any]) -> str:
    said = str(error.get("description", error))
    if error.get("err_code") in _NO_ROOM:
        return f"{said}: give the NATS server more storage, or delete jobs that have ended"
    return said


async def _delete_streams(client: Client, names: StreamNames) -> None:
    manager = client.jsm(timeout=_TIMEOUT_SECONDS)
    for name in names.all_streams:
        with suppress(NotFoundError):
            await manager.delete_stream(name)


async def _stream_request(
    client: Client, request: str, stream: str, body: Mapping[str, object]
) -> dict[str, Any]:
    """A JetStream API request as raw JSON: nats-py's own types drop configuration fields that they do not know."""
    subject = f"$JS.API.STREAM.{request}.{stream}"
    answer = await client.request(subject, json.dumps(body).encode(), timeout=_TIMEOUT_SECONDS)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def _ask(client: Client, subject: str, data: bytes) -> None:
    """A request to the server as such.

    Raises:
        Refused: its answer is an error.
    """
    answer = json.loads((await client.request(subject, data, timeout=_TIMEOUT_SECONDS)).data)
    if (error := answer.get("error")) is not None:
        raise Refused(f"{subject}: {error.get('description', error)}")


def _keys(job: RLJob, issuer: Issuer) -> JobKeys:
    metadata = job.metadata
    return JobKeys(issuer, metadata.namespace, metadata.name, metadata.uid or "")


def _names(job: RLJob) -> StreamNames:
    metadata = job.metadata
    return StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")


async def _ignore(_: Exception) -> None:
    """nats-py reports here what it also raises."""
