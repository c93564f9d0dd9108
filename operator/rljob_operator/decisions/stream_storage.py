"""How many bytes the streams of a job may hold, each and together, on each server that has them.

A job's account has a limit, so that no job can take what others need: neither by a mistake nor because somebody has its
credentials. So has each of its streams, and the account's is their sum, so that no role takes the room of another one's
stream. The server sets the whole limit aside if it is alone. Therefore the limits begin small, and grow with what the
streams hold: those that may need any number of bytes have as much room again as they have taken, and some more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from rljob_core.ports import Channel
from rljob_core.spec import RLJobSpec, RLJobStatus
from rljob_core.stream_definitions import GROWING, stream_limits
from rljob_core.stream_names import StreamNames
from rljob_core.streams_budget import largest_trajectory_stream_bytes, trajectory_stream_bytes
from rljob_operator.decisions.conditions import condition

SHARE = 4
"""One replica of all streams of a job may take a quarter of a server, unless the operator's settings say otherwise."""
SMALLEST_SHARE = 2_000_000_000
"""Bytes that this is at least: on a small server, whoever comes first may take more."""
_STEP = 1 << 20
"""An account's limit is a multiple of so many bytes: its token's revision follows from it."""
_NO_MORE = (
    "the NATS server has no more: give it more storage (max_file_store), or delete jobs that have ended"
)
NAMESPACE_SHARE = 2
"""All jobs of a namespace may take half of the servers, unless the operator's settings say otherwise."""
_NO_MORE_OF_NAMESPACE = (
    "the jobs of this namespace have all that they may: delete jobs that have ended, or raise "
    "RLJOB_NATS_NAMESPACE_GB of the operator"
)
KEPT = 8
"""The stream that is the last to grow leaves an eighth of what the job may have to the others."""
RESTING = 4 << 20
"""Bytes of one replica of each stream of a job that does not run, beyond twice what it holds.

Four times the largest message (`max_payload`): a restore that finds no room for one has filled more than half of the
limit, so that the stream grows.
"""


@dataclass(frozen=True, slots=True)
class Room:
    """What the server says of an account.

    Attributes:
        allowed: bytes that its streams may take now, all replicas together; None if it has no limit, or is not there.
        used: bytes that its streams take.
        free: by how many bytes its limit could grow; None if nobody knows.
        capacity: bytes that the smallest server may store; None if nobody knows.
        namespace_free: by how many bytes its limit could grow within what its namespace may have; None for any number.
    """

    allowed: int | None = None
    used: int = 0
    free: int | None = None
    capacity: int | None = None
    namespace_free: int | None = None


@dataclass(frozen=True, slots=True)
class StreamUse:
    """What a stream holds, in bytes of one replica.

    Attributes:
        bytes: that it has now.
        limit: that it may have; 0 if it is not there.
    """

    bytes: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """The limits that an account and its streams are to have.

    Attributes:
        allowed: bytes of all streams together, all replicas.
        limits: bytes of one replica of each stream, by name; a stream that is not here has none.
        short: why a stream has less than it should; empty if none has.
    """

    allowed: int
    limits: Mapping[str, int]
    short: str = ""


def is_at_rest(spec: RLJobSpec, status: RLJobStatus) -> bool:
    """Whether a job's pods write nothing more: it has ended, or is suspended, and they are gone.

    A job that waits in a queue is not at rest: the queue admits it for reasons that no generation of it tells.
    """
    if spec.suspend and not status.trainer_attempt:
        return True  # it has never run

    def holds(kind: str) -> bool:
        found = condition(status, kind)
        return found is not None and found.status == "True"

    stopped = holds("Succeeded") or holds("Failed") or (spec.suspend and holds("Suspended"))
    return stopped and not holds("Reconciling")


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


def most_of_namespace(capacity: int) -> int:
    """Bytes that the jobs of a namespace may have, of all that the servers may store together."""
    return max(capacity // NAMESPACE_SHARE, 2 * SMALLEST_SHARE)


def is_crowded(growing: Mapping[str, int], held: Mapping[str, int]) -> bool:
    """Whether a stream has taken so much of its limit that `storage` may give it more.

    Args:
        growing: limits of the streams that grow, by name.
        held: bytes of all streams.
    """
    return any(2 * held.get(name, 0) > limit for name, limit in growing.items())


def job_storage(
    names: StreamNames,
    room: Room,
    held: Mapping[str, StreamUse],
    *,
    trajectory_bytes: int,
    replicas: int,
    most: int | None,
    resting: bool = False,
) -> Storage:
    """The limits of a job's account and of its streams, of which that of the trajectories is to hold so many bytes.

    Args:
        trajectory_bytes: what the stream of trajectories is to hold.
        resting: whether the job does not run. Then each stream has as much room again as it holds, and gives the rest
            back; all of them grow when a backup fills them.

    The other arguments are those of `storage`.
    """
    if resting:
        room, held = _given_back(room, held, replicas)
        first = first_limits(names, trajectory_bytes, resting=True)
        return storage(room, held, first=first, growing=names.all_streams, replicas=replicas, most=most)

    def given(size: int) -> Storage:
        return storage(
            room,
            held,
            first=stream_limits(names, size),
            growing=[names.stream(channel) for channel in GROWING],
            replicas=replicas,
            most=most,
        )

    found, trajectories = given(trajectory_bytes), names.stream(Channel.TRAJECTORIES)
    before = held.get(trajectories, StreamUse()).limit
    if before and found.limits[trajectories] < trajectory_bytes:
        # Scores and progress of trajectories that have no room need none either.
        found = replace(given(before), short=found.short)
    return found


def first_limits(names: StreamNames, trajectory_bytes: int, *, resting: bool) -> Mapping[str, int]:
    """Bytes with which each stream of a job begins."""
    return dict.fromkeys(names.all_streams, RESTING) if resting else stream_limits(names, trajectory_bytes)


def may_begin(
    names: StreamNames,
    held: Mapping[str, StreamUse],
    given: Storage,
    *,
    trajectory_bytes: int,
    resting: bool = False,
) -> bool:
    """Whether a job's streams have what they need: to be created, or for the job to go on after it rested.

    A job that runs goes on with what it has, whatever it asks for meanwhile.
    """
    first = first_limits(names, trajectory_bytes, resting=resting)
    least = stream_limits(names, 0)
    rested = not resting and any(0 < use.limit < least[name] for name, use in held.items())
    if rested:
        return all(given.limits.get(name, 0) >= size for name, size in first.items())
    return all(name in held or name in given.limits for name in first)


def _given_back(
    room: Room, held: Mapping[str, StreamUse], replicas: int
) -> tuple[Room, Mapping[str, StreamUse]]:
    """What an account and its streams have, once they have given back what a job that does not run leaves unused."""
    kept = {name: replace(use, limit=min(use.limit, RESTING + 2 * use.bytes)) for name, use in held.items()}
    if room.allowed is None:
        return room, kept
    # While it rests, it may be given fewer replicas than its streams still have.
    needed = max(room.used, replicas * sum(use.limit for use in kept.values()))
    allowed = min(room.allowed, _rounded_up(needed))
    back = room.allowed - allowed
    free, of_namespace = (None if one is None else one + back for one in (room.free, room.namespace_free))
    return replace(room, allowed=allowed, free=free, namespace_free=of_namespace), kept


def storage(
    room: Room,
    held: Mapping[str, StreamUse],
    *,
    first: Mapping[str, int],
    growing: Collection[str],
    replicas: int,
    most: int | None,
) -> Storage:
    """The limits of a job's account and of its streams: none becomes smaller.

    Args:
        room: what the account has now.
        held: what its streams hold, by name.
        first: with what each stream begins.
        growing: names of those that get as much room again as they have taken, in the order in which they get it.
        replicas: of each stream.
        most: bytes of one replica that any job may have (`RLJOB_NATS_JOB_GB`); None for its share of a server.
    """
    most = most_of(room.capacity) if most is None else most
    before = room.allowed or 0
    capacity, reason = None, ""
    if most is not None:
        capacity, reason = most, f"a job may have {in_gb(most)}: raise RLJOB_NATS_JOB_GB of the operator"
    for free, why in ((room.namespace_free, _NO_MORE_OF_NAMESPACE), (room.free, _NO_MORE)):
        if free is None:
            continue
        within = (before + max(free, 0)) // replicas
        if capacity is None or within < capacity:
            capacity, reason = within, why
    if capacity is not None:
        capacity = max(capacity, before // replicas)
    order = [*(name for name in first if name not in growing), *growing]
    limits, short = {name: use.limit for name, use in held.items()}, False
    for name in order:
        use = held.get(name, StreamUse())
        wanted = _wanted(use, first[name], grows=name in growing)
        available = wanted if capacity is None else capacity - sum(limits.values()) + use.limit
        if name == order[-1] and capacity is not None:
            available = max(min(available, first[name]), available - capacity // KEPT)
        if wanted > available:
            # A stream that grows takes what there is; another one stays as it is.
            grows = use.limit > 0 and name in growing
            wanted = max(use.limit, available) if grows else use.limit
            short = short or not grows or 2 * use.bytes > wanted
        limits[name] = wanted
    allowed = _rounded_up(max(before, replicas * sum(limits.values())))
    if capacity is not None:
        allowed = max(before, min(allowed, replicas * capacity))
    return Storage(allowed, {name: limit for name, limit in limits.items() if limit}, reason if short else "")


def _rounded_up(size: int) -> int:
    return -(-size // _STEP) * _STEP


def _wanted(use: StreamUse, first: int, *, grows: bool) -> int:
    """The limit that a stream should have."""
    return first + 2 * use.bytes if grows and 2 * use.bytes > use.limit else max(use.limit, first)


def in_words(room: Room, storage: Storage) -> str:
    """What is to be done about streams that are short of room."""
    return (
        f"its streams take {in_gb(room.used)} of the {in_gb(storage.allowed)} that they may; {storage.short}"
    )


def in_gb(size: int) -> str:
    """A number of bytes, as messages say it."""
    return f"{size / 1e9:.4g} GB"
