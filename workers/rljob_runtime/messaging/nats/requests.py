"""The requests of one connection that wait for their answers, each for a limited time."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import nats.errors

from rljob_runtime.messaging.nats.answers import Interrupted, JetStreamError, is_stored
from rljob_runtime.messaging.nats.client import Received

_REPEAT_SECONDS = 1.0


#: Sends a message with a token: subject, data, headers, token. Raises nats-py's errors.
Send = Callable[[str, bytes, Mapping[str, str] | None, str], None]


@dataclass(slots=True)
class _PendingRequest:
    answer: asyncio.Future[Received]
    seconds: float
    deadline: float
    due: float
    """When it is sent once more; never if infinite."""
    subject: str
    data: bytes
    headers: Mapping[str, str] | None
    batch: list[Received] | None

    def fail(self, error: Exception) -> None:
        if not self.answer.done():  # its caller may have given up
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class DirectGetBatch:
    """Stored messages with which JetStream answers one request.

    Attributes:
        messages: those that have arrived.
        end: the status after the last message. Raises `Interrupted` if nothing arrived in time, and `JetStreamError` if
            the server does not let this user ask.
    """

    messages: Sequence[Received]
    end: asyncio.Future[Received]

    def drop(self) -> None:
        """Stop waiting for the answer."""
        if not self.end.cancel() and not self.end.cancelled():
            self.end.exception()  # else asyncio logs it as never retrieved


class PendingRequests:
    """Sends requests, each with a token by which its answer finds it, and fails those that get no answer.

    Args:
        seconds: for which a request waits.
        send: sends one.
    """

    def __init__(self, seconds: float, send: Send) -> None:
        self._seconds = seconds
        self._send = send
        self._count = 0
        self._requests: dict[str, _PendingRequest] = {}
        self._sweeping = False

    def add(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        repeated: bool = False,
        batch: list[Received] | None = None,
        seconds: float | None = None,
    ) -> asyncio.Future[Received]:
        """Send a request; a future of its answer, which raises `Interrupted` if none arrives in time.

        Args:
            subject, data, headers: of the message.
            batch: takes the stored messages of a request that is answered by many, and then by a status: the answer.
            seconds: that the request waits for its answer, or for the next message of the batch, if not as usual.
            repeated: whether it is sent once more each second until it is answered. The first answer counts, so that a
                server that stands still delays it no longer than until another one serves, and a slow one need not
                hurry.
        """
        loop = asyncio.get_running_loop()
        self._count += 1
        token = str(self._count)
        now, answer = loop.time(), loop.create_future()
        due = now + _REPEAT_SECONDS if repeated else math.inf
        seconds = self._seconds if seconds is None else seconds
        self._requests[token] = _PendingRequest(
            answer, seconds, now + seconds, due, subject, data, headers, batch
        )
        if not self._sweeping:
            self._sweep()
        try:
            self._send(subject, data, headers, token)
        except nats.errors.Error as error:
            self._fail(token, Interrupted(repr(error)))
        return answer

    def answer(self, token: str, message: Received) -> None:
        """Give a request its answer; without effect if nobody waits for it."""
        request = self._requests.get(token)
        if request is None:
            return
        if request.batch is not None and is_stored(message):
            request.batch.append(message)
            request.deadline = asyncio.get_running_loop().time() + request.seconds
            return
        del self._requests[token]
        if not request.answer.done():
            request.answer.set_result(message)

    def forbid(self, subject: str, reason: str) -> None:
        """Fail the requests to a subject (in lower case) to which the server does not let this user publish."""
        refused = [token for token, request in self._requests.items() if request.subject.lower() == subject]
        for token in refused:
            self._fail(token, JetStreamError({"code": 403, "description": reason}))

    def interrupt(self) -> None:
        """Fail all requests: the connection was lost."""
        for request in self._requests.values():
            request.fail(Interrupted("the connection was lost"))
        self._requests.clear()

    def _fail(self, token: str, error: Exception) -> None:
        self._requests.pop(token).fail(error)

    def _sweep(self) -> None:
        """Fail the requests that have waited too long, and repeat others; calls itself while any request waits."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for token, request in list(self._requests.items()):
            if request.deadline <= now:
                self._fail(token, Interrupted(f"no answer in {request.seconds} s"))
            elif request.due <= now and not request.answer.done():
                request.due = now + _REPEAT_SECONDS
                with contextlib.suppress(nats.errors.Error):
                    self._send(request.subject, request.data, request.headers, token)
        self._sweeping = bool(self._requests)
        if self._sweeping:
            loop.call_later(min(self._seconds, _REPEAT_SECONDS) / 4, self._sweep)
