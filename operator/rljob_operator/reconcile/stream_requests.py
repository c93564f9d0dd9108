"""The operator's requests to a nats-server, each sent once: about accounts, streams and their consumers.

A server that does not do what it is asked makes them raise `StreamRefused`; one that does not answer, `TimeoutError` or
an error of nats-py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from rljob_core.queue_definitions import in_memory, needs_memory
from rljob_core.site_streams import SiteConsumer
from rljob_core.spec import RLJob
from rljob_operator.decisions.joined_streams import COPY, CopyId
from rljob_operator.decisions.stream_storage import StreamUse

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
CLUSTER_REPLICAS = 3
"""Of the streams of jobs that say nothing, on a cluster: one server may die permanently."""
_COUNT_SECONDS = 2.0
_STREAM_EXISTS = 10058
_NO_STREAM = 10059
_NO_CONSUMER = 10014
_STATUS, _MESSAGE_ID, _SEQUENCE = "Status", "Nats-Msg-Id", "Nats-Sequence"
_NO_MESSAGE = "404"
#: The server's errors if it has no room: in memory, on its disk, by its limits, by those of the account.
_NO_ROOM = frozenset({10002, 10023, 10028, 10047, 10122})
#: The same if it has not as many servers as a stream is to have replicas: now, or ever.
_NO_SERVERS = frozenset({10005, 10074})


class StreamRefused(Exception):
    """The server does not do what was asked; the message is for people."""


# ---------------------------------------------------------------------------------------------- servers and accounts


async def count_servers(system: Client) -> int:
    """How many servers with JetStream the cluster has, those that are away among them; 1 if it is no cluster.

    Args:
        system: a user of the system account.
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


async def give_account(system: Client, token: str) -> None:
    """Let the server have an account, or change it.

    Args:
        system: a user of the system account.
        token: the account's. Of two servers that were apart, both have the one with the greater revision afterwards.
    """
    await ask(system, "$SYS.REQ.CLAIMS.UPDATE", token.encode())


def revision_by_time() -> int:
    """A revision: later tokens have a greater one, also those of the next process."""
    return int(time.time())


# ---------------------------------------------------------------------------------------------- streams


async def create(client: Client, definition: Mapping[str, Any]) -> bool:
    """Create a stream; False if there is another one of its name."""
    answer = await stream_request(client, "CREATE", definition["name"], definition)
    if answer.get("did_create"):
        # A server that starts passes over a stream whose description a power cut has damaged. Created again, the stream
        # has its messages, but only an update writes the whole description again.
        answer = await stream_request(client, "UPDATE", definition["name"], answer["config"])
    if (error := answer.get("error")) is None:
        return True
    # The server looks for the room of another stream before it finds that there is one of this name.
    if error.get("err_code") != _STREAM_EXISTS and await stream_info(client, definition["name"]) is None:
        _accepted(answer, f"the stream {definition['name']} cannot be created")
    return False


async def create_stream(client: Client, definition: Mapping[str, Any]) -> None:
    """Create a stream between hub and site; one of its name that exists stays as it is."""
    name = definition["name"]
    if await stream_info(client, name) is None:
        answer = await stream_request(client, "CREATE", name, definition)
        _accepted(answer, f"the stream {name} cannot be created")


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
    """Configuration (`config`) and content (`state`) of a stream; None if there is no such stream."""
    info = await stream_request(client, "INFO", stream, {})
    there = _accepted(info, f"the stream {stream} cannot be read", absent=_NO_STREAM)
    return info if there else None


async def stream_uses(client: Client, names: Sequence[str]) -> dict[str, StreamUse]:
    """What those streams that exist hold and may hold, by name."""
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
    """
    info = await stream_request(client, "INFO", stream, {})
    before = replicas if "error" in info else info["config"]["num_replicas"]
    if before == replicas or (at_least and before > replicas):
        return
    answer = await stream_request(client, "UPDATE", stream, {**info["config"], "num_replicas": replicas})
    _accepted(answer, f"the stream {stream} keeps {before} replicas instead of {replicas}")


async def create_queue(client: Client, stream: str, definition: Mapping[str, Any]) -> None:
    """Create a queue where it does not exist, without what an earlier one of its name had delivered."""
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
    _accepted(answer, f"the queue {name} of the stream {stream} cannot be created")


async def delete_streams(client: Client, names: Iterable[str]) -> None:
    """Delete streams; those that are gone are passed over."""
    for name in names:
        answer = await stream_request(client, "DELETE", name, {})
        _accepted(answer, f"the stream {name} cannot be deleted", absent=_NO_STREAM)


async def update_stream(client: Client, config: dict[str, Any]) -> None:
    """Give a stream another configuration."""
    answer = await stream_request(client, "UPDATE", config["name"], config)
    _accepted(answer, f"the stream {config['name']} cannot be changed")


# ---------------------------------------------------------------------------------------------- streams at hub and site


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer by which one side reads the other's stream.

    Attributes:
        copy_id: of the copy that it is for; empty if it is for none.
        confirmed: sequence of the last message up to which its reader has confirmed all.
    """

    copy_id: CopyId
    confirmed: int


async def server_id(client: Client) -> str:
    """Id of the process of the server that a client is connected to."""
    return str((await ask(client, "$SYS.REQ.USER.INFO", b""))["server"]["id"])


def copy_of(config: dict[str, Any]) -> CopyId:
    """Id of the copy that a stream is, or that a consumer is for; empty if it has none."""
    return str((config.get("metadata") or {}).get(COPY, ""))


async def message_id(client: Client, stream: str, sequence: int) -> str | None:
    """Id of a message; None if the stream does not have it."""
    headers = await _headers(client, stream, {"seq": sequence})
    return None if headers is None else headers.get(_MESSAGE_ID, "")


async def newest_sequence(client: Client, stream: str, subject: str) -> int | None:
    """Sequence of the newest message of a subject; None if the stream has none."""
    headers = await _headers(client, stream, {"last_by_subj": subject})
    return None if headers is None else int(headers[_SEQUENCE])


async def _headers(client: Client, stream: str, which: Mapping[str, object]) -> Mapping[str, str] | None:
    """The headers of a stored message; None if the stream does not have it."""
    body = json.dumps(which).encode()
    message = await client.request(f"$JS.API.DIRECT.GET.{stream}", body, timeout=TIMEOUT_SECONDS)
    headers = message.headers or {}
    return None if headers.get(_STATUS) == _NO_MESSAGE else headers


async def consumer_state(client: Client, consumer: SiteConsumer) -> ConsumerState | None:
    """How far a consumer is, and of which copy; None if it does not exist."""
    name = consumer.definition["name"]
    answer = await _request(client, f"CONSUMER.INFO.{consumer.stream}.{name}", {})
    if not _accepted(answer, f"the consumer {name} of {consumer.stream} cannot be read", absent=_NO_CONSUMER):
        return None
    return ConsumerState(copy_of(answer["config"]), int(answer["ack_floor"]["stream_seq"]))


async def delete_confirmed(client: Client, consumer: SiteConsumer, state: ConsumerState) -> None:
    """Delete what a work queue still has although its only reader has confirmed it.

    nats-server 2.15.1 keeps such messages until its next start: after a cut it delivers again what was not confirmed,
    and if the reader, which had all of it, confirms all before all was delivered once more, the rest of it is neither
    deleted then nor by any later confirmation (`processAckMsgLocked`). They would fill the stream.
    """
    info = await stream_info(client, consumer.stream)
    if info is None or not 0 < info["state"]["first_seq"] <= state.confirmed:
        return
    answer = await stream_request(client, "PURGE", consumer.stream, {"seq": state.confirmed + 1})
    _accepted(answer, f"the stream {consumer.stream} cannot be cleared")
    if purged := int(answer.get("purged", 0)):
        log.info("%s had %d messages that the other side had confirmed", consumer.stream, purged)


async def create_site_consumer(client: Client, consumer: SiteConsumer, *, copy: CopyId = "") -> None:
    """Create a consumer, for a copy."""
    name = consumer.definition["name"]
    config = {**consumer.definition, **({"metadata": {COPY: copy}} if copy else {})}
    body = json.dumps({"stream_name": consumer.stream, "config": config}).encode()
    await ask(client, f"$JS.API.CONSUMER.CREATE.{consumer.stream}.{name}", body)


async def delete_consumer(client: Client, stream: str, name: str) -> None:
    """Delete a consumer."""
    await ask(client, f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")


# ---------------------------------------------------------------------------------------------- requests and answers


async def ask(
    client: Client, subject: str, data: bytes, *, timeout: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """The answer to a request to the server as such."""
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


def _accepted(answer: Mapping[str, Any], failure: str, *, absent: int = 0) -> bool:
    """Whether the server has done what was asked; False if there is nothing to do it with: its error is `absent`.

    Raises:
        StreamRefused: it has not; the message begins with `failure`.
    """
    if (error := answer.get("error")) is None:
        return True
    if error.get("err_code") != absent:
        raise StreamRefused(f"{failure}: {reason_of(error)}")
    return False


def reason_of(error: Mapping[str, Any]) -> str:
    """What the server says is wrong, and what to do about it."""
    said = str(error.get("description", error))
    if error.get("err_code") in _NO_ROOM:
        return f"{said}: give the NATS server more storage, or delete jobs that have ended"
    if error.get("err_code") in _NO_SERVERS:
        return f"{said}: start the NATS servers that are away, or lower spec.nats.replicas"
    return said
