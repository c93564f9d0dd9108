"""The NATS permissions of each role: the subjects to which its credentials allow it to publish and subscribe.

Permissions to publish cover everything that a role does. A request to JetStream is a published message whose subject
names the stream and the consumer; the reply arrives in the role's own inbox. Beside it, a role may subscribe to the
subjects on which the server says that a message is stored, of the streams that it reads in order.

The creator of a consumer chooses where the server delivers its messages. So no role creates, changes or deletes any.
The operator creates the two queues that are shared, and their roles take from them. Every other reader of a stream asks
for messages by sequence, and may hear that one is stored. Hence each receiving role has a stream of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rljob_core.messages import COORDINATOR_SIGNAL, ENGINE_SIGNALS
from rljob_core.ports import Channel
from rljob_core.stream_names import STORED, StreamNames, inbox_of, stored_subject

API = "$JS.API"
#: The queue that reward workers share, and the suffixes of what they read.
_REWARD_QUEUE = "reward"
_PAYLOAD, _CHUNKS, _ABSENT, _DRAINED, _GROUP = "payload", "chunk.>", "absent", "drained", "group"


class Holder(StrEnum):
    """The programs that get credentials of their own for a job, by their names in `rljob_runtime.main`."""

    COORDINATOR = "coordinator"
    ROLLOUT = "rollout"
    REWARD = "reward"
    TRAINER = "trainer"
    TRACKER = "tracker"
    READER = "reader"
    """Programs that only read: `rljob`, its audit and its backup."""
    VIEWER = "viewer"
    """People with `kubectl rljob`: they read what the reader reads, but no weights."""
    RESTORER = "restorer"
    """Fills the streams of a job from a backup; its credentials are worth nothing once the job runs."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects, with NATS wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(holder: Holder, names: StreamNames, *, uid: str) -> Permissions:
    """What a role may do to the job with these names and that UID."""
    can = Operations(names)
    heard: list[str] = []
    match holder:
        case Holder.COORDINATOR:
            allowed = [
                *can.write(Channel.LEDGER, "claim", "records", "snapshot", "part"),
                *can.write(Channel.WORK, "engine.>", "site.>"),
                *can.write(Channel.TRAINING, "trainer.*"),
                *can.write(Channel.EVENTS, holder),
                *can.write(Channel.VERSIONS, "policy"),
                *can.write(Channel.METRICS, "steps"),
                *can.write(Channel.REWARDS, "mark"),
                *can.write(Channel.TRAJECTORIES, _GROUP),
                *can.signal(COORDINATOR_SIGNAL, f"{ENGINE_SIGNALS}>"),
                names.by_way_of("*"),
                *can.take(Channel.EVENTS, "coordinator"),
                *can.measure(Channel.EVENTS),
                *can.follow(Channel.LEDGER, Channel.TRAJECTORIES, Channel.REWARDS),
                *can.get(Channel.VERSIONS, Channel.METRICS),
                *can.count(Channel.TRAJECTORIES, _REWARD_QUEUE),
                *can.follow(Channel.PROGRESS),
                *can.purge(Channel.PROGRESS),
                *can.delete(Channel.TRAJECTORIES, Channel.REWARDS),
                *can.purge(Channel.WORK),
                *can.follow(Channel.WEIGHTS),
                *can.purge_signals(),
                *can.follow_signals(),
            ]
            heard = [
                *can.hear(Channel.LEDGER, Channel.TRAJECTORIES, Channel.REWARDS),
                *can.hear_signals(),
            ]
        case Holder.ROLLOUT:
            allowed = [
                *can.write(Channel.TRAJECTORIES, _PAYLOAD, _CHUNKS, _ABSENT, _DRAINED),
                *can.measure(Channel.TRAJECTORIES),
                *can.write(Channel.PROGRESS, ">"),
                *can.delete(Channel.PROGRESS),
                *can.write(Channel.EVENTS, holder),
                *can.signal(f"{ENGINE_SIGNALS}>"),
                *can.follow(Channel.WORK),
                *can.delete(Channel.WORK),
                *can.follow(Channel.VERSIONS),
                *can.get(Channel.WEIGHTS),
            ]
            heard = can.hear(Channel.VERSIONS, Channel.WORK)
        case Holder.REWARD:
            allowed = [
                *can.write(Channel.REWARDS, "results"),
                *can.write(Channel.EVENTS, holder),
                *can.take(Channel.TRAJECTORIES, _REWARD_QUEUE),
                *can.get(Channel.TRAJECTORIES),
            ]
        case Holder.TRAINER:
            allowed = [
                *can.write(Channel.EVENTS, holder),
                *can.follow(Channel.TRAINING),
                *can.delete(Channel.TRAINING),
                *can.get(Channel.TRAJECTORIES),
                *can.write(Channel.WEIGHTS, "*.*"),
                *can.follow(Channel.WEIGHTS),
                *can.purge(Channel.WEIGHTS),
            ]
            heard = can.hear(Channel.TRAINING)
        case Holder.TRACKER:
            allowed = can.follow(Channel.METRICS)
            heard = can.hear(Channel.METRICS)
        case Holder.READER | Holder.VIEWER:
            channels = (
                Channel.LEDGER,
                Channel.TRAJECTORIES,
                Channel.REWARDS,
                Channel.VERSIONS,
                Channel.METRICS,
            )
            allowed = [
                *can.measure_all(),
                *can.follow(*channels),
                *(can.get(Channel.WEIGHTS) if holder is Holder.READER else ()),
                *can.follow_signals(),
            ]
            heard = [*can.hear(*channels), *can.hear_signals()]
        case Holder.RESTORER:
            allowed = [
                *can.measure_all(),
                *can.fill(Channel.TRAJECTORIES, Channel.REWARDS, Channel.VERSIONS, Channel.METRICS),
                *can.write(Channel.LEDGER, ">"),
                *can.follow(Channel.LEDGER),
                *can.write(Channel.WEIGHTS, "*.*"),
                *can.follow(Channel.WEIGHTS),
                *can.purge(Channel.WEIGHTS),
            ]
            heard = can.hear(Channel.LEDGER)
    return Permissions(tuple(dict.fromkeys(allowed)), (f"{inbox_of(uid, holder)}.>", *heard))


REPORTS = "rljob.reports"
"""First tokens of the subject on which the operator receives what the jobs' accounts send to it, each under its own
name: `rljob.reports.<account>.<suffix>`."""
REPORT = "report"
"""First token of that subject inside the job's account."""

#: The operator as a user of the system account: it creates and deletes accounts, removes all streams of an account that
#: it is about to delete, receives the jobs' metrics, and asks how many servers there are and how much
#: storage each account has.
OPERATOR = Permissions(
    publish=(
        *(
            f"$SYS.REQ.{r}"
            for r in ("CLAIMS.UPDATE", "CLAIMS.DELETE", "SERVER.PING.STATSZ", "SERVER.PING.JSZ")
        ),
        f"{API}.ACCOUNT.PURGE.*",
    ),
    subscribe=(f"{REPORTS}.*.>", "_INBOX.>"),
)

#: The operator as a user of the account of a job's streams: it creates, enlarges and joins them, and reads signals.
JOB_OPERATOR = Permissions(
    publish=(
        *(f"{API}.STREAM.{request}.*" for request in ("CREATE", "UPDATE", "INFO", "MSG.GET")),
        f"{API}.DIRECT.GET.>",
        f"{API}.CONSUMER.CREATE.>",
        f"{API}.CONSUMER.INFO.*.*",
        f"{API}.CONSUMER.MSG.NEXT.*.*",
        f"{API}.CONSUMER.DELETE.*.*",
        "$SYS.REQ.USER.INFO",
    ),
    subscribe=("_INBOX.>",),
)

#: Services of the account of a job's streams that its workers may call within their permissions; True if one request
#: has several replies. All JetStream requests are one service, because an account without JetStream would answer some
#: of them itself, with an error.
SERVICES: dict[str, bool] = {
    "rljob.>": False,
    "$KV.>": False,
    "$JS.ACK.>": False,
    f"{API}.>": True,
}
#: What the same account says to them: that a message is stored.
ANNOUNCEMENTS = f"{STORED}.>"


# ---------------------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class Operations:
    """The subjects of each operation on one job's streams."""

    names: StreamNames

    def write(self, channel: Channel, *suffixes: str) -> list[str]:
        """Publish to these suffixes."""
        return [self.names.subject_of(channel, suffix) for suffix in suffixes]

    def signal(self, *keys: str) -> list[str]:
        """Set and remove these keys."""
        return [self.names.signal_subject + key for key in keys]

    def purge_signals(self) -> list[str]:
        """Delete the values of keys."""
        return [f"{API}.STREAM.PURGE.{self.names.signal_stream}"]

    def follow(self, *channels: Channel) -> list[str]:
        """Read all of a channel in order, or list its suffixes and read messages."""
        return [subject for channel in channels for subject in _follow(self.names.stream(channel))]

    def hear(self, *channels: Channel) -> list[str]:
        """Subscribe to what the server says to be stored in a channel."""
        return [stored_subject(self.names.subject_of(channel, ">")) for channel in channels]

    def follow_signals(self) -> list[str]:
        """Read all keys and their changes."""
        return _follow(self.names.signal_stream)

    def hear_signals(self) -> list[str]:
        """Subscribe to what the server says to be stored in the signal bucket."""
        return [stored_subject(f"{self.names.signal_subject}>")]

    def take(self, channel: Channel, queue: str) -> list[str]:
        """Receive messages from a queue, and acknowledge them."""
        stream = self.names.stream(channel)
        return [
            f"{API}.CONSUMER.INFO.{stream}.{queue}",
            f"{API}.CONSUMER.MSG.NEXT.{stream}.{queue}",
            f"$JS.ACK.{stream}.{queue}.>",
        ]

    def get(self, *channels: Channel) -> list[str]:
        """Read messages by sequence, or the newest of a suffix."""
        return [subject for channel in channels for subject in _get(self.names.stream(channel))]

    def count(self, channel: Channel, queue: str) -> list[str]:
        """Read how many messages a queue has left to deliver, and its newest message."""
        return [f"{API}.CONSUMER.INFO.{self.names.stream(channel)}.{queue}", *self.follow(channel)]

    def measure(self, channel: Channel) -> list[str]:
        """Read how much is stored."""
        return [f"{API}.STREAM.INFO.{self.names.stream(channel)}"]

    def delete(self, *channels: Channel) -> list[str]:
        """Delete messages by sequence, and read which of them are left."""
        deletions = [f"{API}.STREAM.MSG.DELETE.{self.names.stream(channel)}" for channel in channels]
        return [*deletions, *self.get(*channels)]

    def purge(self, *channels: Channel) -> list[str]:
        """Delete a suffix's messages."""
        return [f"{API}.STREAM.PURGE.{self.names.stream(channel)}" for channel in channels]

    def measure_all(self) -> list[str]:
        """Read how much each stream of the job has."""
        return [f"{API}.STREAM.INFO.{stream}" for stream in self.names.all_streams]

    def fill(self, *channels: Channel) -> list[str]:
        """Publish to all suffixes, begin at any sequence, and delete messages: what restores a stream."""
        return [
            *(subject for channel in channels for subject in self.write(channel, ">")),
            *self.purge(*channels),
            *self.delete(*channels),
        ]


def _get(stream: str) -> list[str]:
    return [
        f"{API}.{request}.{stream}" for request in ("DIRECT.GET", "STREAM.MSG.GET")
    ]  # of any replica; the leader


def _follow(stream: str) -> list[str]:
    return [f"{API}.STREAM.INFO.{stream}", *_get(stream)]
