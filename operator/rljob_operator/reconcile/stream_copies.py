"""Copies a stream from one NATS account to another by the server's own snapshots, chunk by chunk.

The server knows the protocol as `$JS.API.STREAM.SNAPSHOT` and `$JS.API.STREAM.RESTORE`: it sends chunks, each of which
is acknowledged, and takes them as requests. A restored stream appears once it is complete.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client

from rljob_operator.reconcile.stream_requests import StreamRefused, reason_of, stream_request

COPIED = "rljob.dev/copied"
"""Key in the metadata of a stream that is a copy."""
_CHUNK = 512 << 10
"""Bytes of one message of a snapshot: below the server's limit for messages of 1 MB."""
_WINDOW = 4 << 20
"""Bytes of a snapshot on their way at once."""
_SILENCE_SECONDS = 30.0
"""Without a message of the server's, after which a copy is given up."""


async def copy_stream(
    source: Client, target: Client, definition: Mapping[str, Any], info: Mapping[str, Any]
) -> None:
    """Create a stream with the content of another account's stream of its name.

    Args:
        source, target: users of the two accounts.
        definition: of the new stream. Its limit grows to what the other one holds.
        info: configuration and state of the other one.

    Raises:
        StreamRefused: the server does not copy it.
        OSError, TimeoutError, nats.errors.Error: the server cannot be reached.
    """
    copy = {**definition, "metadata": {**definition.get("metadata", {}), COPIED: "true"}}
    # Its limit would count beside its content: the server compares their sum with the account's.
    limit = copy.pop("max_bytes", None)
    await _restore(target, copy, info["state"], _snapshot(source, definition["name"]))
    if limit is not None:
        copy["max_bytes"] = max(limit, int(info["state"]["bytes"]))
    # Also without a limit: a server that is killed before the end of a restore may keep the other configuration.
    answer = await stream_request(target, "UPDATE", definition["name"], copy)
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"the stream {definition['name']} cannot be moved: {reason_of(error)}")


async def _snapshot(client: Client, stream: str) -> AsyncIterator[bytes]:
    """The chunks of a stream's snapshot, without its consumers.

    Raises:
        StreamRefused: the server makes none, or breaks it off.
    """
    inbox = client.new_inbox()
    arriving = await client.subscribe(inbox, pending_bytes_limit=2 * _WINDOW)
    try:
        request = {
            "deliver_subject": inbox,
            "no_consumers": True,
            "chunk_size": _CHUNK,
            "window_size": _WINDOW,
        }
        answer = await stream_request(client, "SNAPSHOT", stream, request)
        if (error := answer.get("error")) is not None:
            raise StreamRefused(f"the stream {stream} cannot be copied: {reason_of(error)}")
        while True:
            message = await arriving.next_msg(timeout=_SILENCE_SECONDS)
            if not message.data:
                break
            yield message.data
            if message.reply:
                await client.publish(message.reply)
        if (message.headers or {}).get("Status", "204") != "204":
            raise OSError(f"the server broke off the snapshot of the stream {stream}: {message.headers}")
    finally:
        with suppress(nats.errors.Error):
            await arriving.unsubscribe()


async def _restore(
    client: Client, definition: Mapping[str, Any], state: Mapping[str, Any], chunks: AsyncIterator[bytes]
) -> None:
    """Create a stream from a snapshot.

    Raises:
        StreamRefused: the server has no room, or does not accept it.
    """
    name = definition["name"]
    answer = await stream_request(client, "RESTORE", name, {"config": definition, "state": state})
    if "error" not in answer:
        subject = answer["deliver_subject"]
        answer = {}
        async for chunk in chunks:
            reply = await client.request(subject, chunk, timeout=_SILENCE_SECONDS)
            if reply.data:  # the server takes no more
                answer = json.loads(reply.data)
                break
        else:
            answer = json.loads((await client.request(subject, b"", timeout=_SILENCE_SECONDS)).data)
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"the stream {name} cannot be moved: {reason_of(error)}")
