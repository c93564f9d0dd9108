"""The operator's requests to a nats-server, each sent once: create, enlarge, replicate and delete streams."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client

from rljob_core.queue_definitions import in_memory, needs_memory
from rljob_core.spec import RLJob
from rljob_operator.decisions.stream_storage import StreamUse

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
CLUSTER_REPLICAS = 3
"""Of the streams of jobs that say nothing, on a cluster: one server may die permanently."""
_COUNT_SECONDS = 2.0
_STREAM_EXISTS = 10058
_NO_STREAM = 10059
#: The server's errors if it has no room: in memory, on its disk, by its limits, by those of the account.
_NO_ROOM = frozenset({10002, 10023, 10028, 10047, 10122})
#: The same if it has not as many servers as a stream is to have replicas: now, or ever.
_NO_SERVERS = frozenset({10005, 10074})


class StreamRefused(Exception):
    """The server does not do what was asked; the message is for people."""


async def count_servers(system: Client) -> int:
    """How many servers with JetStream the cluster has, those that are away among them; 1 if it is no cluster.

    Args:
        system: a user of the system account.

    Raises:
        StreamRefused: the server does not say.
    """
    try:
        answer = await ask(system, "$SYS.REQ.SERVER.PING.STATSZ", b"{}", timeout=_COUNT_SECONDS)
    except (TimeoutError, nats.errors.Error) as error:
        raise StreamRefused(
            "the NATS server does not say how many servers there are: may the operator's user ask it, or is a server "
            "away? (docs/nats-security.md)"
        ) from error
    meta = answer["statsz"].get("jetstream", {}).get("meta") or {}
    return max(int(meta.get("cluster_size", 1)), 1)


def replicas_of(job: RLJob, servers: int) -> int:
    """How many replicas each stream of a job has, where there are so many servers.

    Raises:
        StreamRefused: the job asks for more.
    """
    asked = job.spec.nats.replicas
    if asked is None:
        return CLUSTER_REPLICAS if servers >= CLUSTER_REPLICAS else 1
    if asked > servers:
        found = "there is one" if servers == 1 else f"the cluster has {servers}"
        raise StreamRefused(
            f"spec.nats.replicas: {asked} replicas need as many NATS servers, and {found}: ask for fewer replicas, "
            "or add servers (manifests/overlays/nats-cluster)"
        )
    return asked


async def create(client: Client, definition: Mapping[str, Any]) -> bool:
    """Create a stream; False if there is another one of its name.

    Raises:
        StreamRefused: the server has no room, or does not accept the definition.
    """
    answer = await stream_request(client, "CREATE", definition["name"], definition)
    if answer.get("did_create"):
        # A server that starts passes over a stream whose description a power cut has damaged. Created again, the stream
        # has its messages, but only an update writes the whole description again.
        answer = await stream_request(client, "UPDATE", definition["name"], answer["config"])
    if (error := answer.get("error")) is None:
        return True
    # The server looks for the room of another stream before it finds that there is one of this name.
    exists = (
        error.get("err_code") == _STREAM_EXISTS or await stream_info(client, definition["name"]) is not None
    )
    if not exists:
        raise StreamRefused(f"the stream {definition['name']} cannot be created: {reason_of(error)}")
    return False


async def limit(client: Client, stream: str, size: int, *, at_least: bool = True) -> bool:
    """Let a stream hold `size` bytes; False if the server refuses, or has no stream yet.

    Args:
        client: in the stream's account.
        stream: its name.
        size: its limit, more than it holds.
        at_least: whether a stream that may hold more keeps its limit.
    """
    info = await stream_request(client, "INFO", stream, {})
    if "error" in info:
        return False  # it will be created with this size
    before = info["config"]["max_bytes"]
    if before in {size, 0, -1} or (at_least and before > size):
        return True
    answer = await stream_request(client, "UPDATE", stream, {**info["config"], "max_bytes": size})
    if (error := answer.get("error")) is not None:
        # The job continues with what there is, and its coordinator says so.
        log.warning("%s cannot have %d MB: %s", stream, size >> 20, reason_of(error))
    return error is None


async def stream_info(client: Client, stream: str) -> dict[str, Any] | None:
    """Configuration (`config`) and content (`state`) of a stream; None if there is no such stream.

    Raises:
        StreamRefused: the server does not say.
    """
    info = await stream_request(client, "INFO", stream, {})
    if (error := info.get("error")) is None:
        return info
    if error.get("err_code") != _NO_STREAM:
        raise StreamRefused(f"the stream {stream} cannot be read: {reason_of(error)}")
    return None


async def stream_uses(client: Client, names: Sequence[str]) -> dict[str, StreamUse]:
    """What those streams that exist hold and may hold, by name.

    Raises:
        StreamRefused: the server does not say.
    """
    found = zip(names, await asyncio.gather(*(stream_info(client, name) for name in names)), strict=True)
    return {
        name: StreamUse(int(info["state"]["bytes"]), max(int(info["config"]["max_bytes"]), 0))
        for name, info in found
        if info is not None
    }


async def replicate(client: Client, stream: str, replicas: int, *, at_least: bool = False) -> None:
    """Let a stream, and its queues with it, have so many replicas; without effect if there is no such stream.

    Args:
        client: in the stream's account.
        stream: its name.
        replicas: the number.
        at_least: whether a stream that has more keeps them.

    Raises:
        StreamRefused: the server cannot.
    """
    info = await stream_request(client, "INFO", stream, {})
    before = replicas if "error" in info else info["config"]["num_replicas"]
    if before == replicas or (at_least and before > replicas):
        return
    answer = await stream_request(client, "UPDATE", stream, {**info["config"], "num_replicas": replicas})
    if (error := answer.get("error")) is not None:
        raise StreamRefused(
            f"the stream {stream} keeps {before} replicas instead of {replicas}: {reason_of(error)}"
        )


async def create_queue(client: Client, stream: str, definition: Mapping[str, Any]) -> None:
    """Create a queue where it does not exist, without what an earlier one of its name had delivered.

    Raises:
        StreamRefused: the server does not accept it.
    """
    name = definition["name"]
    body: dict[str, Any] = {"stream_name": stream, "config": definition}
    creation = f"CONSUMER.CREATE.{stream}.{name}.{definition['filter_subject']}"
    info = await _request(client, f"CONSUMER.INFO.{stream}.{name}", {})
    if "error" not in info:
        return
    answer = await _request(client, creation, body)
    if "error" in answer and needs_memory(reason_of(answer["error"])):
        answer = await _request(client, creation, {**body, "config": in_memory(definition)})
    if "error" not in answer and answer["delivered"]["consumer_seq"]:
        # As for a role that creates its queue itself: see `NatsQueue`.
        await _request(client, f"CONSUMER.DELETE.{stream}.{name}", {})
        answer = await _request(client, creation, body)
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"the queue {name} of the stream {stream} cannot be created: {reason_of(error)}")


async def delete_streams(client: Client, names: Iterable[str]) -> None:
    """Delete streams; those that are gone are passed over.

    Raises:
        StreamRefused: the server does not delete one.
    """
    for name in names:
        answer = await stream_request(client, "DELETE", name, {})
        if (error := answer.get("error")) is not None and error.get("err_code") != _NO_STREAM:
            raise StreamRefused(f"the stream {name} cannot be deleted: {reason_of(error)}")


async def ask(
    client: Client, subject: str, data: bytes, *, timeout: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """The answer to a request to the server as such.

    Raises:
        StreamRefused: its answer is an error.
    """
    answer: dict[str, Any] = json.loads((await client.request(subject, data, timeout=timeout)).data)
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"{subject}: {error.get('description', error)}")
    return answer


async def stream_request(
    client: Client, request: str, stream: str, body: Mapping[str, object]
) -> dict[str, Any]:
    """The answer to a request about one stream, which may be an error."""
    return await _request(client, f"STREAM.{request}.{stream}", body)


async def _request(client: Client, subject: str, body: Mapping[str, object]) -> dict[str, Any]:
    """A JetStream API request as raw JSON: nats-py's own types drop configuration fields that they do not know."""
    answer = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=TIMEOUT_SECONDS)
    found: dict[str, Any] = json.loads(answer.data)
    return found


def reason_of(error: Mapping[str, Any]) -> str:
    """What the server says is wrong, and what to do about it."""
    said = str(error.get("description", error))
    if error.get("err_code") in _NO_ROOM:
        return f"{said}: give the NATS server more storage, or delete jobs that have ended"
    if error.get("err_code") in _NO_SERVERS:
        return f"{said}: start the NATS servers that are away, or lower spec.nats.replicas"
    return said
