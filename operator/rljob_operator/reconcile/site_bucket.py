"""`SiteBucket` reads and writes one of the two key-value buckets through which a site and the hub talk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from rljob_core.stream_definitions import Definition
from rljob_operator.decisions.site_buckets import BucketHello, is_outdated, stream_of, subject_of
from rljob_operator.decisions.site_documents import BucketChanges, content_id
from rljob_operator.reconcile.stream_requests import (
    TIMEOUT_SECONDS,
    StreamRefused,
    ask,
    create_stream,
    delete_streams,
    reason_of,
    stream_info,
)

_BATCH = 256
_REASON_CHARACTERS = 1024
_END, _NOTHING = "204", "404"
_STATUS, _SUBJECT, _SEQUENCE, _OPERATION = "Status", "Nats-Subject", "Nats-Sequence", "KV-Operation"


class SiteBucket:
    """A bucket at one server, read again only where it has changed.

    Args:
        name: of the bucket.

    Attributes:
        entries: what was read last, by key.
        created: when its server created it; empty before it was read.
        last: the newest sequence that was read.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.created = ""
        self._config: Mapping[str, Any] = {}
        self._content: str | None = None
        self.last = 0
        self.entries: dict[str, bytes] = {}
        self._sequences: dict[str, int] = {}
        """Of the messages that `entries` are of, in their order."""

    @property
    def content(self) -> str:
        """`content_id` of the entries."""
        if self._content is None:
            self._content = content_id(self.entries)
        return self._content

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the stream, as it was read last; empty if there is none."""
        return self._config

    def hello(self, *, again: str, release: str) -> BucketHello:
        """What this side says of the bucket, which it writes."""
        return BucketHello(created=self.created, last=self.last, again=again, release=release)

    def forget(self) -> None:
        """Read everything again the next time: what the server has lost may still be among the entries."""
        self._reset()

    async def read(self, client: Client) -> bool:
        """Read what has changed; returns whether the bucket exists.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: the server does not say.
        """
        info = await stream_info(client, stream_of(self._name))
        if info is None:
            self._reset()
            return False
        self._config = info["config"]
        last = int(info["state"]["last_seq"])
        if info["created"] != self.created or last < self.last:  # it is another one, or has lost its end
            self._reset(info["created"])
            self._config = info["config"]
        self._drop(int(info["state"]["first_seq"]))
        while self.last < last:
            messages = await self._batch(client, self.last + 1)
            for message in messages:
                self._take(message)
            if not messages:
                self.last = last  # the newest messages are gone: they were replaced meanwhile
        return True

    def _drop(self, first: int) -> None:
        """Forget what a stream that is full has dropped: everything before a sequence."""
        for key in list(takewhile(lambda key: self._sequences[key] < first, self._sequences)):
            del self._sequences[key], self.entries[key]
            self._content = None

    def _reset(self, created: str = "") -> None:
        self.entries, self.created, self._config, self._content, self.last = {}, created, {}, None, 0
        self._sequences.clear()

    async def write(self, client: Client, changes: BucketChanges) -> dict[str, str]:
        """Write what the server takes of some changes; returns by key why it did not take the others.

        One that is too large, or for which there is no room, keeps no other from being written.

        Raises:
            TimeoutError, nats.errors.Error: it is not certain what was written.
        """
        refused: dict[str, str] = {}
        for key in changes.deletes:
            try:
                await self.delete(client, key)
            except StreamRefused as error:
                refused[key] = str(error)
        for key, value in changes.puts:
            try:
                await self.put(client, key, value)
            except (StreamRefused, nats.errors.MaxPayloadError) as error:
                refused[key] = str(error)
        return refused

    async def put(self, client: Client, key: str, value: bytes) -> None:
        """Write a key.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: it is not certain that it was written.
        """
        await ask(client, subject_of(self._name, key), value)

    async def delete(self, client: Client, key: str) -> None:
        """Remove a key; a marker of it stays.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: it is not certain that it was removed.
        """
        answer = await client.request(
            subject_of(self._name, key), b"", timeout=TIMEOUT_SECONDS, headers={_OPERATION: "DEL"}
        )
        if (error := json.loads(answer.data).get("error")) is not None:
            raise StreamRefused(f"{key} of {self._name} cannot be removed: {reason_of(error)}")

    def _take(self, message: Msg) -> None:
        headers = message.headers or {}
        key = headers[_SUBJECT].removeprefix(subject_of(self._name, ""))
        self.last, self._content = int(headers[_SEQUENCE]), None
        self._sequences.pop(key, None)
        if headers.get(_OPERATION):
            self.entries.pop(key, None)
        else:
            self.entries[key], self._sequences[key] = message.data, self.last

    async def _batch(self, client: Client, first: int) -> list[Msg]:
        """The next messages from a sequence on; none if there are none."""
        stream = stream_of(self._name)
        request = {"seq": first, "batch": _BATCH, "next_by_subj": subject_of(self._name, ">")}
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        found: list[Msg] = []
        try:
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
            while True:
                message = await subscription.next_msg(timeout=TIMEOUT_SECONDS)
                status = (message.headers or {}).get(_STATUS)
                if status is None:
                    found.append(message)
                elif status in {_END, _NOTHING}:
                    return found
                else:
                    raise StreamRefused(f"the stream {stream} cannot be read: status {status}")
        finally:
            await subscription.unsubscribe()


async def create_mirror(
    client: Client, mirror: SiteBucket, definition: Definition, hello: BucketHello, *, last: int
) -> bool:
    """Create a mirror, or make it again where it cannot follow its original; returns whether it did.

    Args:
        mirror: as it was read last.
        definition: of its stream.
        hello: the newest that the other side has said of the original.
        last: the newest sequence of the mirror, when that came.
    """
    if mirror.config:
        if not is_outdated(mirror.config, definition, last=last, hello=hello):
            return False
        await delete_streams(client, [definition["name"]])
        mirror.forget()
    await _begin(client, definition["mirror"])
    await create_stream(client, definition)
    mirror.forget()
    return True


async def _begin(client: Client, source: Definition) -> None:
    """Let the consumer that a mirror reads from deliver everything: it has delivered it to the mirror before.

    The mirror would start where the consumer is, and have nothing of what came before.
    """
    consumer = f"{source['name']}.{source['consumer']['name']}"
    # Replies of these subjects cross the border.
    answer = client.new_inbox().replace("_INBOX", "$JSC.R", 1)
    subscription = await client.subscribe(answer)
    try:
        await client.publish(
            f"{source['external']['api']}.CONSUMER.RESET.{consumer}", b'{"seq": 1}', reply=answer
        )
        message = await subscription.next_msg(timeout=TIMEOUT_SECONDS)
    finally:
        await subscription.unsubscribe()
    if not message.data:
        raise StreamRefused(f"the consumer {consumer} of the other side does not exist, or may not be reset")
    if reason := _refusal(message.data):
        raise StreamRefused(f"the consumer {consumer} of the other side cannot be reset: {reason}")


class _FarError(BaseModel):
    description: str = "an error without a description"
    err_code: int = 0


class _FarAnswer(BaseModel):
    error: _FarError | None = None


def _refusal(answer: bytes) -> str:
    """Why the server of the other side does not do what it was asked; empty if it has done it.

    Whoever has that side's credentials can answer anything.
    """
    try:
        error = _FarAnswer.model_validate_json(answer).error
    except ValidationError:
        return "its answer cannot be read"
    return "" if error is None else reason_of(error.model_dump())[:_REASON_CHARACTERS]


async def create_consumer(client: Client, bucket: str, definition: Definition) -> None:
    """Create the durable consumer of a bucket's stream; of one that exists, nothing but its rate is changed."""
    stream, name = stream_of(bucket), definition["name"]
    try:
        found = await ask(client, f"$JS.API.CONSUMER.INFO.{stream}.{name}", b"{}")
        if found["config"].get("rate_limit_bps", 0) == definition.get("rate_limit_bps", 0):
            return
    except StreamRefused:
        pass  # there is none
    body = json.dumps({"stream_name": stream, "config": definition}).encode()
    await ask(client, f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}", body)


ERRORS = (StreamRefused, TimeoutError, nats.errors.Error, OSError)
"""What a request to a server that is away, or does not do what it is asked, ends with."""
