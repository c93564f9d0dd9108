"""The JetStream streams of a job, as JetStream's API takes them: names, subjects, retention, limits.

Who creates them: the operator, in the job's own account; or, where the operator has no such account (`rljob run`, a
server that the job names itself, a server that asks nobody for credentials), a role that starts before the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_core.ports import NEWEST_ONLY, SINGLE_READER, WORK_QUEUES, Channel, first_sequence
from rljob_core.stream_names import StreamNames, stored_subject

DUPLICATE_WINDOW = 300.0
"""Seconds within which a repeated message id is stored once: longer than any publish is retried."""
CONSUMERS = 256
"""Queues that a stream may have at once."""

SUBJECT_MESSAGES = 1 << 24
"""Messages of one subject that a stream keeps, so that empty messages do not become any number. No job comes near it: a
work queue's message is deleted when it was read, a score when it was recorded, and the bytes of so many trajectories,
of 18 kB at least, or of so many chunks end on any server before. Trajectories have no more messages of all subjects,
because each chunk has a subject of its own.
"""
WHOLE = frozenset({Channel.LEDGER, Channel.METRICS})
"""Channels of which nothing is deleted: audits read the ledger from its start, and people all lines of metrics."""
WHOLE_MESSAGES = 1 << 32
"""Messages of one of their subjects: a coordinator that appended every 5 ms would need eight months. What bounds them
is `max_bytes`, which the operator raises while a stream is half full.
"""

FOLLOWED = SINGLE_READER | {
    Channel.LEDGER,
    Channel.TRAJECTORIES,
    Channel.REWARDS,
    Channel.VERSIONS,
    Channel.METRICS,
}
"""Channels that are read in order while others write them."""

Definition = dict[str, Any]

_ROLLUP = "allow_rollup_hdrs"
"""Whether a message may say that it replaces all earlier ones of its subject. Copies of the stream, which hear of no
purge, do the same once they have it.
"""

GROWING = (
    Channel.LEDGER,
    Channel.VERSIONS,
    Channel.METRICS,
    Channel.TRAINING,
    Channel.WORK,
    Channel.WEIGHTS,
)
"""Channels of which a job may need any number of bytes: only its coordinator writes to them; to the last, its trainer.

In the order in which they get room where there is not enough for all.
"""


def stream_limits(names: StreamNames, trajectory_bytes: int) -> dict[str, int]:
    """Bytes that each stream of a job may hold at first, if trajectories have that many.

    No stream takes another one's room, so no role but the coordinator takes that of the job's ledger. The limits of
    what rollout and reward workers write stay, as they follow from what is under way: a score takes a few hundred
    bytes where its trajectory takes at least 18 kB, progress that finds no room is not stored, and an engine's signal
    is one message of a few kB. The channels in `GROWING` get more before they are full.
    """
    limits = {
        Channel.TRAJECTORIES: trajectory_bytes,
        Channel.REWARDS: max(32 << 20, trajectory_bytes // 8),
        Channel.PROGRESS: max(64 << 20, trajectory_bytes // 4),
        Channel.EVENTS: 32 << 20,
        Channel.LEDGER: 64 << 20,
        Channel.VERSIONS: 16 << 20,
        Channel.METRICS: 16 << 20,
        Channel.TRAINING: 16 << 20,
        Channel.WORK: max(32 << 20, trajectory_bytes // 8),
        Channel.WEIGHTS: 64 << 20,
    }
    return {names.stream(channel): size for channel, size in limits.items()} | {names.signal_stream: 32 << 20}


def stream_definitions(
    names: StreamNames,
    *,
    trajectory_bytes: int,
    replicas: int = 1,
    duplicate_window: float = DUPLICATE_WINDOW,
    metrics_to: str | None = None,
    limits: Mapping[str, int] | None = None,
) -> list[Definition]:
    """All streams of a job, the signal bucket's among them.

    Args:
        names: of the job.
        trajectory_bytes: limit of the trajectory stream; when it is reached, new payloads are refused.
        replicas: of each stream, on a cluster of servers.
        duplicate_window: seconds within which a repeated message id is stored once.
        metrics_to: first tokens of the subject to which the server publishes each line of metrics once more.
        limits: of the streams in bytes, by name; None if only the trajectories have one.
    """
    common = {
        "retention": "limits",
        "storage": "file",
        "discard": "new",  # a full stream refuses new messages, and drops none
        "duplicate_window": round(duplicate_window * 1_000_000_000),
        "num_replicas": replicas,
        "allow_direct": True,
    }
    if limits is None:
        limits = {names.stream(Channel.TRAJECTORIES): trajectory_bytes}
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
        stream |= _subject_limit(channel)
        if channel is Channel.TRAJECTORIES:
            stream["max_msgs"] = SUBJECT_MESSAGES
        if channel is Channel.WEIGHTS:
            stream[_ROLLUP] = True
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
    found.append(signals)
    for stream in found:
        if (most := limits.get(stream["name"])) is not None:
            stream["max_bytes"] = most
    return found


def _subject_limit(channel: Channel) -> Definition:
    """How many messages a stream keeps of each subject. Where that is more than one, the next is refused.

    By itself, a limit for each subject would make room by dropping the subject's oldest message: a record of the
    ledger, say.
    """
    if channel in NEWEST_ONLY:
        return {"max_msgs_per_subject": 1}
    most = WHOLE_MESSAGES if channel in WHOLE else SUBJECT_MESSAGES
    return {"max_msgs_per_subject": most, "discard_new_per_subject": True}


def _announced(subject: str) -> Definition:
    """The server publishes the headers of each stored message again: a reader without consumer then asks for it."""
    return {"src": subject, "dest": stored_subject(subject), "headers_only": True}
