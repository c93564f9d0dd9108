"""The JetStream streams of a job, as JetStream's API takes them: names, subjects, retention, limits.

Who creates them: the operator, in the job's own account; or, where the operator has no such account (`rljob run`, a
server that the job names itself, a server that asks nobody for credentials), a role that starts before the others.
"""

from __future__ import annotations

from typing import Any

from rljob_core.ports import NEWEST_ONLY, SINGLE_READER, WORK_QUEUES, Channel, first_sequence
from rljob_core.stream_names import StreamNames, stored_subject

DUPLICATE_WINDOW = 300.0
"""Seconds within which a repeated message id is stored once: longer than any publish is retried."""
CONSUMERS = 256
"""Queues that a stream may have at once."""

FOLLOWED = SINGLE_READER | {
    Channel.LEDGER,
    Channel.TRAJECTORIES,
    Channel.REWARDS,
    Channel.VERSIONS,
    Channel.METRICS,
}
"""Channels that are read in order while others write them."""

Definition = dict[str, Any]


def limited_channels(trajectory_bytes: int) -> dict[Channel, int]:
    """Bytes of the other channels that others than coordinator and trainer write, if trajectories have that many.

    They follow from what is under way: a score takes a few hundred bytes where its trajectory takes at least 18 kB, and
    progress that finds no room is not stored. So no role but these two takes the room of its job's ledger.
    """
    return {
        Channel.REWARDS: max(32 << 20, trajectory_bytes // 8),
        Channel.PROGRESS: max(64 << 20, trajectory_bytes // 4),
        Channel.EVENTS: 32 << 20,
    }


def stream_definitions(
    names: StreamNames,
    *,
    trajectory_bytes: int,
    replicas: int = 1,
    duplicate_window: float = DUPLICATE_WINDOW,
    metrics_to: str | None = None,
    limited: bool = False,
) -> list[Definition]:
    """All streams of a job, the signal bucket's among them.

    Args:
        names: of the job.
        trajectory_bytes: limit of the trajectory stream; when it is reached, new payloads are refused.
        replicas: of each stream, on a cluster of servers.
        duplicate_window: seconds within which a repeated message id is stored once.
        metrics_to: first tokens of the subject to which the server publishes each line of metrics once more.
        limited: whether the channels of `limited_channels` have a limit, too.
    """
    common = {
        "retention": "limits",
        "storage": "file",
        "discard": "new",  # a full stream refuses new messages, and drops none
        "duplicate_window": round(duplicate_window * 1_000_000_000),
        "num_replicas": replicas,
        "allow_direct": True,
    }
    limits = limited_channels(trajectory_bytes) if limited else {}
    limits[Channel.TRAJECTORIES] = trajectory_bytes
    found: list[Definition] = []
    for channel in Channel:
        stream: Definition = {
            "name": names.stream(channel),
            "subjects": [names.subject_of(channel, ">")],
            **common,
            "first_seq": first_sequence(channel),
            "max_consumers": CONSUMERS,
        }
        if channel in WORK_QUEUES:
            stream["retention"] = "workqueue"
        if channel in limits:
            stream["max_bytes"] = limits[channel]
        if channel in NEWEST_ONLY:
            stream["max_msgs_per_subject"] = 1
        if channel is Channel.METRICS and metrics_to is not None:
            stream["republish"] = {"src": names.subject_of(channel, ">"), "dest": f"{metrics_to}.>"}
        elif channel in FOLLOWED:
            stream["republish"] = _announced(names.subject_of(channel, ">"))
        found.append(stream)
    signals = {
        "name": names.signal_stream,
        "subjects": [f"{names.signal_subject}>"],
        **common,
        "max_msgs_per_subject": 1,
        "max_consumers": CONSUMERS,
        "deny_delete": True,
        "republish": _announced(f"{names.signal_subject}>"),
    }
    return [*found, signals]


def _announced(subject: str) -> Definition:
    """The server publishes the headers of each stored message again: a reader without consumer then asks for it."""
    return {"src": subject, "dest": stored_subject(subject), "headers_only": True}
