"""How many bytes the streams of a job may take together, on each server that has them.

A job's account has a limit, so that no job can take what others need: neither by a mistake nor because somebody has its
credentials. The server sets the whole limit aside if it is alone. Therefore it begins small, and grows with what the
streams hold: all but the trajectories, whose stream has a limit of its own, have as much room again as they have taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.spec import RLJobSpec
from rljob_core.stream_definitions import limited_channels
from rljob_core.streams_budget import largest_trajectory_stream_bytes, trajectory_stream_bytes

OTHER_BYTES = 256 << 20
"""Free room that the streams besides the trajectories have at least."""

SHARE = 4
"""One replica of all streams of a job may take a quarter of a server, unless the operator's settings say otherwise."""
SMALLEST_SHARE = 2_000_000_000
"""Bytes that this is at least: on a small server, whoever comes first may take more."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the server says of an account.

    Attributes:
        allowed: bytes that its streams may take now, all replicas together; None if it has no limit, or is not there.
        used: bytes that its streams take.
        free: by how many bytes its limit could grow; None if nobody knows.
        capacity: bytes that the smallest server may store; None if nobody knows.
    """

    allowed: int | None = None
    used: int = 0
    free: int | None = None
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The limit that an account is to have.

    Attributes:
        allowed: bytes.
        short: why it is less than the streams should have; empty if it is not.
    """

    allowed: int
    short: str = ""


def trajectory_room(spec: RLJobSpec, wanted: int) -> int:
    """Bytes that the stream of trajectories is to hold.

    Args:
        spec: of the job.
        wanted: what the job's coordinator asks for. It is believed up to what the longest prompts would take.
    """
    return max(trajectory_stream_bytes(spec), min(wanted, largest_trajectory_stream_bytes(spec)))


def most_of(capacity: int | None) -> int | None:
    """Bytes of one replica that a job may have on servers of that capacity; None for any number."""
    return None if capacity is None else max(capacity // SHARE, SMALLEST_SHARE)


def is_crowded(room: Room) -> bool:
    """Whether a job's streams have taken so much that `storage` may give them more."""
    return room.allowed is None or 2 * room.used > room.allowed


def storage(
    room: Room, *, trajectory_limit: int, trajectory_bytes: int, replicas: int, most: int | None
) -> Storage:
    """The limit of a job's account.

    Args:
        room: what the account has now.
        trajectory_limit: of the stream of trajectories, in bytes of one replica.
        trajectory_bytes: that this stream takes, all replicas together.
        replicas: of each stream.
        most: bytes of one replica that any job may have (`RLJOB_NATS_JOB_GB`); None for its share of a server.
    """
    most = most_of(room.capacity) if most is None else most
    others = max(room.used - trajectory_bytes, 0)
    # Whatever the limited channels take, half of the room at first is left for the ledger and the others.
    beside = max(OTHER_BYTES, sum(limited_channels(trajectory_limit).values()) + OTHER_BYTES // 2)
    wanted = replicas * (trajectory_limit + beside) + 2 * others
    before = room.allowed or 0
    allowed, short = max(wanted, before), ""
    if most is not None and allowed > replicas * most:
        allowed = max(replicas * most, before)
        short = f"a job may have {in_gb(most)}: raise RLJOB_NATS_JOB_GB of the operator"
    if room.free is not None and allowed - before > room.free:
        allowed = before + max(room.free, 0)
        short = "the NATS server has no more: give it more storage (max_file_store), or delete jobs that have ended"
    return Storage(allowed, short if 2 * others + replicas * trajectory_limit > allowed else "")


def needs_at_first(*, trajectory_limit: int, replicas: int) -> int:
    """Bytes without which a job's streams cannot be created."""
    limited = sum(limited_channels(trajectory_limit).values())
    return replicas * (trajectory_limit + limited + OTHER_BYTES // 4)


def in_words(room: Room, storage: Storage) -> str:
    """What is to be done about streams that are short of room."""
    return (
        f"its streams take {in_gb(room.used)} of the {in_gb(storage.allowed)} that they may; {storage.short}"
    )


def in_gb(size: int) -> str:
    """A number of bytes, as messages say it."""
    return f"{size / 1e9:.4g} GB"
