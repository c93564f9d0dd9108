"""Answers of a nats-server: JetStream's JSON, and the errors by which a request fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rljob_runtime.messaging.nats.client import Received

#: Error code for a request about a consumer that does not exist.
NO_CONSUMER = 10014


class Interrupted(Exception):
    """A request was not answered: the connection was lost, or the server is not ready or too slow. Repeat it."""


class JetStreamError(Exception):
    """The server's own error answer."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))
        self.description = str(error.get("description", ""))
        super().__init__(f"{self.description} ({self.code}, {self.err_code})")


def parsed(data: bytes) -> dict[str, Any]:
    """JetStream's JSON answer.

    Raises:
        Interrupted: the server is not ready, or too busy.
        JetStreamError: the server's error.
    """
    answer: dict[str, Any] = json.loads(data)
    error = answer.get("error")
    if error is None:
        return answer
    refused = JetStreamError(error)
    # 10008: JetStream is starting or recovering. 10059: the stream is not created yet, by the role that creates it.
    # 10005: a cluster has fewer servers now than the stream has replicas. 429: more requests wait in the server than
    # it keeps. 10009: a cluster is without a leader. 10158: this message was sent before, to a leader that was lost
    # since, and it is not decided yet whether it is stored.
    if refused.err_code in (10005, 10008, 10009, 10059, 10158) or refused.code == 429:
        raise Interrupted(str(refused))
    raise refused


def is_stored(message: Received) -> bool:
    """Whether an answer to `DIRECT.GET` is a stored message, and not the server's status in place of one.

    The server adds its headers after those of the message's writer, who may have named one "Status".
    """
    return "Nats-Sequence" in (message.headers or {})


def end_of_batch(status: Received) -> tuple[int, int]:
    """What the status that ends the messages of a `DIRECT.GET` says: the sequence of the last, and how many follow it.

    Both are 0 if there were none.

    Raises:
        Interrupted: no server has the stream now.
        JetStreamError: the server refuses.
    """
    headers = status.headers or {}
    match headers.get("Status", ""):
        case "204":
            return int(headers["Nats-Last-Sequence"]), int(headers["Nats-Num-Pending"])
        case "404":
            return 0, 0
        case "503":
            raise Interrupted("no server has the stream now")
        case code:
            raise JetStreamError({"code": code or 0, "description": headers.get("Description", "")})


def status_of(answer: Received) -> str:
    """The server's status in place of an answer; empty for an answer.

    A stored message has the server's header with its sequence. Its other headers are its writer's, who may have named
    one "Status".
    """
    headers = answer.headers or {}
    return "" if answer.data or "Nats-Sequence" in headers else headers.get("Status", "")
