"""The requests of one connection that wait for their answers, each for a limited time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rljob_runtime.messaging.nats.answers import Interrupted, JetStreamError
from rljob_runtime.messaging.nats.client import Received


@dataclass(frozen=True, slots=True)
class _Request:
    answer: asyncio.Future[Received]
    deadline: float
    subject: str

    def fail(self, error: Exception) -> None:
        if not self.answer.done():  # its caller may have given up
            self.answer.set_exception(error)


class PendingRequests:
    """Gives each request a token, by which its answer finds it, and fails requests that get no answer.

    Args:
        seconds: for which a request waits.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        # All wait equally long, so the first ones expire first.
        self._requests: dict[str, _Request] = {}
        self._sweeping = False

    def add(self, subject: str) -> tuple[str, asyncio.Future[Received]]:
        """Return a new token, and the future of its answer, which raises `Interrupted` if none arrives in time."""
        loop = asyncio.get_running_loop()
        self._count += 1
        token = str(self._count)
        request = _Request(loop.create_future(), loop.time() + self._seconds, subject)
        self._requests[token] = request
        if not self._sweeping:
            self._sweep()
        return token, request.answer

    def answer(self, token: str, message: Received) -> None:
        """Give a request its answer; without effect if nobody waits for it."""
        request = self._requests.pop(token, None)
        if request is not None and not request.answer.done():
            request.answer.set_result(message)

    def fail(self, token: str, error: Exception) -> None:
        """Fail a request that waits."""
        self._requests.pop(token).fail(error)

    def forbid(self, subject: str, reason: str) -> None:
        """Fail the requests to a subject (in lower case) to which the server does not let this user publish."""
        refused = [token for token, request in self._requests.items() if request.subject.lower() == subject]
        for token in refused:
            self.fail(token, JetStreamError({"code": 403, "description": reason}))

    def interrupt(self) -> None:
        """Fail all requests: the connection was lost."""
        for request in self._requests.values():
            request.fail(Interrupted("the connection was lost"))
        self._requests.clear()

    def _sweep(self) -> None:
        """Fail the requests that have waited too long; repeats itself while any request waits."""
        loop = asyncio.get_running_loop()
        for token, request in list(self._requests.items()):
            if request.deadline > loop.time():
                break
            self.fail(token, Interrupted(f"no answer in {self._seconds} s"))
        self._sweeping = bool(self._requests)
        if self._sweeping:
            loop.call_later(self._seconds / 4, self._sweep)
