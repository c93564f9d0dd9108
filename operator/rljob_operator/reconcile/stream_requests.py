"""The operator's requests to a nats-server, each sent once: create, enlarge, replicate and delete streams."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import NotFoundError

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
_COUNT_SECONDS = 2.0
_STREAM_EXISTS = 10058
#: The server's errors if it has no room: in memory, on its disk, by its limits, by those of the account.
_NO_ROOM = frozenset({10002, 10023, 10028, 10047, 10122})
#: The same if it has not as many servers as a stream is to have replicas: now, or ever.
_NO_SERVERS = frozenset({10005, 10074})


class Refused(Exception):
    """The server does not do what was asked; the message is for people."""


async def count_servers(system: Client) -> int:
    """How many servers with JetStream the cluster has, those that are away among them; 1 if it is no cluster.

    Args:
        system: a user of the system account.

    Raises:
        Refused: the server does not say.
    """
    try:
        answer = await ask(system, "$SYS.REQ.SERVER.PING.STATSZ", b"{}", timeout=_COUNT_SECONDS)
    except (TimeoutError, nats.errors.Error) as error:
        raise Refused(
            "the NATS server does not say how many servers there are: is the operator's Secret rljob-nats-issuer of an "
            "older release? (docs/nats-security.md)"
        ) from error
    meta = answer["statsz"].get("jetstream", {}).get("meta") or {}
    return max(int(meta.get("cluster_size", 1)), 1)


async def create(client: Client, definition: Mapping[str, Any]) -> bool:
    """Create a stream; False if there is another one of its name.

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
    return error is None


async def enlarge(client: Client, stream: str, size: int) -> bool:
    """Enlarge a stream to at least `size` bytes; False if the server refuses, or has no stream yet."""
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


async def stream_bytes(client: Client, stream: str) -> int:
    """Bytes that the server's replica of a stream takes; 0 if there is no such stream."""
    info = await _stream_request(client, "INFO", stream, {})
    return 0 if "error" in info else int(info["state"]["bytes"])


async def replicate(client: Client, stream: str, replicas: int, *, at_least: bool = False) -> None:
    """Let a stream, and its queues with it, have so many replicas; without effect if there is no such stream.

    Args:
        client: in the stream's account.
        stream: its name.
        replicas: the number.
        at_least: whether a stream that has more keeps them.

    Raises:
        Refused: the server cannot.
    """
    info = await _stream_request(client, "INFO", stream, {})
    before = replicas if "error" in info else info["config"]["num_replicas"]
    if before == replicas or (at_least and before > replicas):
        return
    answer = await _stream_request(client, "UPDATE", stream, {**info["config"], "num_replicas": replicas})
    if (error := answer.get("error")) is not None:
        raise Refused(f"the stream {stream} keeps {before} replicas instead of {replicas}: {_reason(error)}")


async def delete_streams(client: Client, names: Iterable[str]) -> None:
    """Delete streams; those that are gone are passed over."""
    manager = client.jsm(timeout=TIMEOUT_SECONDS)
    for name in names:
        with suppress(NotFoundError):
            await manager.delete_stream(name)


async def ask(
    client: Client, subject: str, data: bytes, *, timeout: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """The answer to a request to the server as such.

    Raises:
        Refused: its answer is an error.
    """
    answer: dict[str, Any] = json.loads((await client.request(subject, data, timeout=timeout)).data)
    if (error := answer.get("error")) is not None:
        raise Refused(f"{subject}: {error.get('description', error)}")
    return answer


async def _stream_request(
    client: Client, request: str, stream: str, body: Mapping[str, object]
) -> dict[str, Any]:
    """A JetStream API request as raw JSON: nats-py's own types drop configuration fields that they do not know."""
    subject = f"$JS.API.STREAM.{request}.{stream}"
    answer = await client.request(subject, json.dumps(body).encode(), timeout=TIMEOUT_SECONDS)
    found: dict[str, Any] = json.loads(answer.data)
    return found


def _reason(error: Mapping[str, Any]) -> str:
    said = str(error.get("description", error))
    if error.get("err_code") in _NO_ROOM:
        return f"{said}: give the NATS server more storage, or delete jobs that have ended"
    if error.get("err_code") in _NO_SERVERS:
        return f"{said}: start the NATS servers that are away, or lower spec.nats.replicas"
    return said
