"""Requests that create a job's streams, and let them hold more."""

from __future__ import annotations

import json
from functools import partial

from rljob_core.errors import StoreFull, StoreUnavailable
from rljob_core.stream_definitions import Definition
from rljob_runtime.messaging.nats.answers import JetStreamError
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.publisher import NO_STORAGE

#: Limits of the server, of the account, and of one stream of an account.
_NO_ROOM = (*NO_STORAGE, 10028, 10122)
_STREAM_EXISTS = 10058
_NO_STREAM = 10059
_NO_CLUSTER = 10074


async def is_absent(connection: Connection, stream: str) -> bool:
    """Whether a stream does not exist; any other request about it would be repeated until it does.

    Raises:
        StoreUnavailable: the server does not say.
    """
    answer = await connection.retried(partial(connection.request, f"$JS.API.STREAM.INFO.{stream}", b"{}"))
    error: dict[str, object] = json.loads(answer.data).get("error", {})
    return error.get("err_code") == _NO_STREAM


async def create_stream(connection: Connection, definition: Definition) -> None:
    """Create a stream where it does not exist.

    Raises:
        StoreUnavailable: the server is alone, and the stream is to have replicas.
        Interrupted, JetStreamError: see `Connection.call`.
    """
    name = definition["name"]
    try:
        info = await connection.call(f"STREAM.CREATE.{name}", definition)
    except JetStreamError as error:
        if error.err_code == _NO_CLUSTER:
            raise StoreUnavailable(
                f"the stream {name} cannot have {definition['num_replicas']} replicas: the server at "
                f"{connection.url} is in no cluster: leave spec.nats.replicas out, or name a cluster's URL"
            ) from error
        if error.err_code != _STREAM_EXISTS:
            raise
        return
    if info.get("did_create"):
        # A server that starts passes over a stream whose description a power cut has damaged. Created again, the
        # stream has its messages, but only an update writes the whole description again.
        await connection.call(f"STREAM.UPDATE.{name}", info["config"])


async def enlarge_stream(connection: Connection, stream: str, size: int, *, allowed: bool) -> None:
    """Let a stream hold `size` bytes, if its limit is lower now; `allowed`: whether this role may change it.

    Raises:
        StoreFull: the server does not have the storage, or the stream is too small and may not be changed.
        Interrupted, JetStreamError: see `Connection.call`.
    """
    info = await connection.call(f"STREAM.INFO.{stream}", {})
    held = info["config"]["max_bytes"]
    if not 0 < held < size:
        return
    if not allowed:
        raise StoreFull(f"{stream} holds {held >> 20} MB so far")
    try:
        await connection.call(f"STREAM.UPDATE.{stream}", {**info["config"], "max_bytes": size})
    except JetStreamError as error:
        if error.err_code in _NO_ROOM:
            raise StoreFull(error.description) from error
        raise
