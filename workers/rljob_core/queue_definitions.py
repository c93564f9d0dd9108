"""The durable queues of a job's streams that several readers share, as the server takes their definitions.

The operator creates them, or, on a server that authenticates nobody, the first role that takes from them. Channels of
which each suffix has a single reader (`SINGLE_READER`) need none: see `docs/design/streams.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_core.messages.rewards import REWARD_ACK_WAIT, REWARD_QUEUE
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames

ACK_WAIT, MAX_PENDING = 30.0, 1000
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """A durable queue.

    Attributes:
        channel: over whose messages it is.
        suffix: of these messages.
        name: of the queue.
        ack_wait: seconds until a message that is not acknowledged is delivered again.
        max_pending: how many messages may be delivered and not acknowledged at a time.
    """

    channel: Channel
    suffix: str
    name: str
    ack_wait: float = ACK_WAIT
    max_pending: int = MAX_PENDING

    def definition(self, names: StreamNames) -> dict[str, Any]:
        """As the server takes it."""
        return {
            "name": self.name,
            "durable_name": self.name,
            "deliver_policy": "all",
            "filter_subject": names.subject_of(self.channel, self.suffix),
            "ack_policy": "explicit",
            "ack_wait": round(self.ack_wait * _NANOSECONDS),
            "max_ack_pending": self.max_pending,
            "max_waiting": 2048,
        }


def needs_memory(error: str) -> bool:
    """Whether a queue can be created only `in_memory`, by the server's description of why it was not.

    A power cut can damage the file of a queue's state. The server then starts without the queue, and never lets one of
    that name have its state in that file again; no request removes it.
    """
    return "creating store for consumer" in error


def in_memory(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a queue whose state the server keeps in memory: it is created again after each restart."""
    return {**definition, "mem_storage": True}


def shared_queues(*, per_group: bool) -> tuple[SharedQueue, ...]:
    """A job's queues.

    Args:
        per_group: whether reward workers score groups, which the coordinator names, instead of what is stored.
    """
    scored = "group" if per_group else "payload"
    return (
        SharedQueue(Channel.TRAJECTORIES, scored, REWARD_QUEUE, ack_wait=REWARD_ACK_WAIT),
        SharedQueue(Channel.EVENTS, ">", "coordinator"),
    )
