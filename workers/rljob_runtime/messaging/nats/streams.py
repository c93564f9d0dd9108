"""A job's streams as this process creates them, and the configurations of consumers on JetStream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from rljob_core.stream_definitions import DUPLICATE_WINDOW, Definition, stream_definitions
from rljob_core.stream_names import StreamNames

#: Default limit of the trajectory stream.
TRAJECTORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class JobStreams(StreamNames):
    """Names and definitions of one job's streams.

    Args:
        subject: first tokens of all subjects.
        prefix: first part of all stream and bucket names.
        trajectory_bytes: limit of the trajectory stream; when it is reached, new payloads are refused.
        replicas: of each stream, on a cluster of servers.
        duplicate_window: seconds within which a repeated message id is stored once.
    """

    trajectory_bytes: int = TRAJECTORY_BYTES
    replicas: int = 1
    duplicate_window: float = DUPLICATE_WINDOW

    def definitions(self) -> list[Definition]:
        """All streams to create."""
        return stream_definitions(
            self,
            trajectory_bytes=self.trajectory_bytes,
            replicas=self.replicas,
            duplicate_window=self.duplicate_window,
        )


def reader_config(
    name: str, subject: str, *, start: int, headers_only: bool, last_per_subject: bool
) -> ConsumerConfig:
    """A consumer for an ordered reader: in memory, without acknowledgements, deleted after five idle minutes."""
    return ConsumerConfig(
        name=name,
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT
        if last_per_subject
        else DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=None if last_per_subject else max(start, 1),
        filter_subject=subject,
        ack_policy=AckPolicy.NONE,
        max_deliver=1,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=300.0,
        headers_only=headers_only or None,
    )


def probe_config(name: str, subject: str, *, after: int) -> dict[str, object]:
    """A consumer that is never pulled: the sequence at which it begins shows what was stored after a time.

    Args:
        after: nanoseconds since 1970.
    """
    seconds, nanoseconds = divmod(after + 1, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {
        **reader_config(name, subject, start=1, headers_only=True, last_per_subject=False)
        .evolve(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_seq=None, inactive_threshold=5.0)
        .as_dict(),
        # nats-py would round it to microseconds.
        "opt_start_time": f"{moment}.{nanoseconds:09d}Z",
    }


def queue_config(name: str, subject: str, *, ack_wait: float, max_pending: int) -> ConsumerConfig:
    """A durable queue: each message goes to one reader, and is delivered again until it is acknowledged."""
    return ConsumerConfig(
        name=name,
        durable_name=name,
        deliver_policy=DeliverPolicy.ALL,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ack_wait,
        max_ack_pending=max_pending,
        max_waiting=2048,
    )
