"""The signal bucket of a job: keys whose newest values are kept, in the format of NATS' key-value buckets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from uuid import uuid4

from rljob_core.errors import StoreFull, StreamCut
from rljob_core.ports import MESSAGE_ID, UNLIMITED_ROOM
from rljob_core.site_border import is_forged_signal
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.nats.answers import JetStreamError, parsed
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.publisher import is_full
from rljob_runtime.messaging.nats.pull import stream_info
from rljob_runtime.messaging.nats.reader import read_in_order

log = logging.getLogger(__name__)

_OPERATION = "KV-Operation"


class SignalBucket:
    """Writes and watches the signal bucket of one job."""

    def __init__(self, connection: Connection, streams: StreamNames) -> None:
        self._connection = connection
        self._streams = streams
        self._forged = 0

    async def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        await self._write(key, value, {})

    async def delete(self, key: str) -> None:
        """Remove a key."""
        await self._write(key, b"", {_OPERATION: "DEL"})

    async def _write(self, key: str, value: bytes, headers: Mapping[str, str]) -> None:
        subject = f"{self._streams.signal_subject}{key}"
        head = {**headers, MESSAGE_ID: uuid4().hex}

        async def attempt() -> None:
            try:
                parsed((await self._connection.request(subject, value, head)).data)
            except JetStreamError as error:
                if is_full(error):
                    raise StoreFull(f"{self._streams.signal_stream}: {error.description}") from error
                raise

        await self._connection.retried(attempt)

    async def room(self) -> int:
        """Bytes that the bucket can still take."""
        info = await stream_info(self._connection, self._streams.signal_stream)
        limit = int(info["config"]["max_bytes"])
        return limit - int(info["state"]["bytes"]) if limit > 0 else UNLIMITED_ROOM

    async def purge(self, pattern: str) -> None:
        """Delete the messages of all keys that match a pattern: unlike `delete`, it stores none."""
        which = {"filter": f"{self._streams.signal_subject}{pattern}"}
        subject = f"STREAM.PURGE.{self._streams.signal_stream}"
        await self._connection.retried(lambda: self._connection.call(subject, which))

    async def watch(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """All keys with their values, then every change as it comes (None: removed), without end."""
        subject = self._streams.signal_subject
        while True:
            batches = read_in_order(
                self._connection,
                stream=self._streams.signal_stream,
                subject=f"{subject}>",
                suffix_of=lambda full: full[len(subject) :],
                start=1,  # the bucket keeps the newest value of each key
            )
            try:
                async for batch in batches:
                    for message in batch:
                        if is_forged_signal(self._streams, message.suffix, message.headers):
                            self._forged += 1
                            if self._forged == 1:
                                log.warning(
                                    "%s: a site has set %s, which is left out", subject, message.suffix
                                )
                            continue
                        yield message.suffix, None if _OPERATION in message.headers else message.data
            except StreamCut as cut:
                log.warning("%s", cut)
