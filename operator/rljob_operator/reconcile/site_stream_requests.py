"""Requests about the streams of a job that is at several sites: what the hub's operator and that of a site share."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client

from rljob_core.site_streams import SiteConsumer
from rljob_operator.decisions.joined_streams import COPY, CopyId
from rljob_operator.reconcile.stream_requests import (
    TIMEOUT_SECONDS,
    StreamRefused,
    ask,
    reason_of,
    stream_info,
    stream_request,
)

log = logging.getLogger(__name__)

_NO_CONSUMER = 10014
_NO_MESSAGE = "404"
_STATUS, _MESSAGE_ID, _SEQUENCE = "Status", "Nats-Msg-Id", "Nats-Sequence"


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
    """Id of the process of the server that a client is connected to.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: it does not say.
    """
    return str((await ask(client, "$SYS.REQ.USER.INFO", b""))["server"]["id"])


def copy_of(config: dict[str, Any]) -> CopyId:
    """Id of the copy that a stream is, or that a consumer is for; empty if it has none."""
    return str((config.get("metadata") or {}).get(COPY, ""))


async def message_id(client: Client, stream: str, sequence: int) -> str | None:
    """Id of a message; None if the stream does not have it.

    Raises:
        TimeoutError, nats.errors.Error: the server does not say.
    """
    body = json.dumps({"seq": sequence}).encode()
    message = await client.request(f"$JS.API.DIRECT.GET.{stream}", body, timeout=TIMEOUT_SECONDS)
    headers = message.headers or {}
    return None if headers.get(_STATUS) == _NO_MESSAGE else headers.get(_MESSAGE_ID, "")


async def newest_sequence(client: Client, stream: str, subject: str) -> int | None:
    """Sequence of the newest message of a subject; None if the stream has none.

    Raises:
        TimeoutError, nats.errors.Error: the server does not say.
    """
    body = json.dumps({"last_by_subj": subject}).encode()
    message = await client.request(f"$JS.API.DIRECT.GET.{stream}", body, timeout=TIMEOUT_SECONDS)
    headers = message.headers or {}
    return None if headers.get(_STATUS) == _NO_MESSAGE else int(headers[_SEQUENCE])


async def consumer_state(client: Client, consumer: SiteConsumer) -> ConsumerState | None:
    """How far a consumer is, and of which copy; None if it does not exist.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not say.
    """
    name = consumer.definition["name"]
    subject = f"$JS.API.CONSUMER.INFO.{consumer.stream}.{name}"
    answer: dict[str, Any] = json.loads((await client.request(subject, b"{}", timeout=TIMEOUT_SECONDS)).data)
    if (error := answer.get("error")) is None:
        return ConsumerState(copy_of(answer["config"]), int(answer["ack_floor"]["stream_seq"]))
    if error.get("err_code") != _NO_CONSUMER:
        raise StreamRefused(f"the consumer {name} of {consumer.stream} cannot be read: {reason_of(error)}")
    return None


async def consumer_copy(client: Client, consumer: SiteConsumer) -> CopyId | None:
    """Of which copy a consumer is; None if it does not exist; errors as of `consumer_state`."""
    state = await consumer_state(client, consumer)
    return None if state is None else state.copy_id


async def delete_confirmed(client: Client, consumer: SiteConsumer, state: ConsumerState) -> None:
    """Delete what a work queue still has although its only reader has confirmed it.

    nats-server 2.15.1 keeps such messages until its next start: after a cut it delivers again what was not confirmed,
    and if the reader, which had all of it, confirms all before all was delivered once more, the rest of it is neither
    deleted then nor by any later confirmation (`processAckMsgLocked`). They would fill the stream.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not do it.
    """
    info = await stream_info(client, consumer.stream)
    if info is None or not 0 < info["state"]["first_seq"] <= state.confirmed:
        return
    answer = await stream_request(client, "PURGE", consumer.stream, {"seq": state.confirmed + 1})
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"the stream {consumer.stream} cannot be cleared: {reason_of(error)}")
    if purged := int(answer.get("purged", 0)):
        log.info("%s had %d messages that the other side had confirmed", consumer.stream, purged)


async def create_site_consumer(client: Client, consumer: SiteConsumer, *, copy: CopyId = "") -> None:
    """Create a consumer, for a copy.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not create it.
    """
    name = consumer.definition["name"]
    config = {**consumer.definition, **({"metadata": {COPY: copy}} if copy else {})}
    body = json.dumps({"stream_name": consumer.stream, "config": config}).encode()
    await ask(client, f"$JS.API.CONSUMER.CREATE.{consumer.stream}.{name}", body)


async def delete_consumer(client: Client, stream: str, name: str) -> None:
    """Delete a consumer.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not delete it.
    """
    await ask(client, f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")


async def update_stream(client: Client, config: dict[str, Any]) -> None:
    """Give a stream another configuration.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not.
    """
    answer = await stream_request(client, "UPDATE", config["name"], config)
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"the stream {config['name']} cannot be changed: {reason_of(error)}")
