"""The NATS permissions of each role: the subjects to which its credentials allow it to publish and subscribe.

Permissions to publish cover everything that a role does. A request to JetStream is a published message whose subject
names the stream and the consumer; the reply arrives in the role's own inbox, the only subject to which it may
subscribe. A consumer's filter is part of the subject that creates the consumer, so a role reads only the suffixes
listed here.

A permission cannot match a part of a consumer's name. Hence each receiving role has a queue stream of its own, and
there is one denial: roles that read trajectories in order must not touch the queue that the reward workers share.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rljob_core.messages import COORDINATOR_SIGNAL, ENGINE_SIGNALS
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames, inbox_of

_API = "$JS.API"
#: The queue that reward workers share, and the suffixes of what they read.
_REWARD_QUEUE = "reward"
_PAYLOAD, _CHUNK, _ABSENT = "payload", "chunk", "absent"


class Holder(StrEnum):
    """The programs that get credentials of their own for a job, by their names in `rljob_runtime.main`."""

    COORDINATOR = "coordinator"
    ROLLOUT = "rollout"
    REWARD = "reward"
    TRAINER = "trainer"
    READER = "reader"
    """Programs that only read: `rljob` and its audit."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects, with NATS wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    publish_denied: tuple[str, ...] = ()


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

    def follow(self, channel: Channel) -> list[str]:
        """Read all of a channel in order."""
        return _follow(self.names.stream(channel), self.names.subject_of(channel, ">"))

    def follow_signals(self) -> list[str]:
        """Read all keys and their changes."""
        return _follow(self.names.signal_stream, f"{self.names.signal_subject}>")

    def take(self, channel: Channel, suffix: str, queue: str = "*") -> list[str]:
        """Receive messages of a suffix from its queue, and acknowledge them; make a damaged queue again."""
        stream = self.names.stream(channel)
        return [
            f"{_API}.CONSUMER.INFO.{stream}.{queue}",
            f"{_API}.CONSUMER.DELETE.{stream}.{queue}",
            f"{_API}.CONSUMER.CREATE.{stream}.{queue}.{self.names.subject_of(channel, suffix)}",
            f"{_API}.CONSUMER.MSG.NEXT.{stream}.{queue}",
            f"$JS.ACK.{stream}.{queue}.>",
        ]

    def get(self, *channels: Channel) -> list[str]:
        """Read messages by sequence, or the newest of a suffix."""
        return [
            f"{_API}.{request}.{self.names.stream(channel)}"
            for channel in channels
            for request in ("DIRECT.GET", "STREAM.MSG.GET")  # of any replica; of the leader
        ]

    def count(self, channel: Channel, queue: str) -> list[str]:
        """Read how many messages a queue has left to deliver, and its newest message."""
        stream = self.names.stream(channel)
        return [f"{_API}.CONSUMER.INFO.{stream}.{queue}", f"{_API}.STREAM.INFO.{stream}", *self.get(channel)]

    def delete(self, *channels: Channel) -> list[str]:
        """Delete messages by sequence, and read which of them are left."""
        deletions = [f"{_API}.STREAM.MSG.DELETE.{self.names.stream(channel)}" for channel in channels]
        return [*deletions, *self.get(*channels)]

    def list_and_get(self, channel: Channel) -> list[str]:
        """List the suffixes, and read messages."""
        return [f"{_API}.STREAM.INFO.{self.names.stream(channel)}", *self.get(channel)]

    def purge(self, channel: Channel) -> list[str]:
        """Delete a suffix's messages and the queues over it."""
        stream = self.names.stream(channel)
        return [
            f"{_API}.STREAM.PURGE.{stream}",
            f"{_API}.CONSUMER.LIST.{stream}",
            f"{_API}.CONSUMER.DELETE.{stream}.*",
        ]

    def all_streams(self, *requests: str) -> list[str]:
        """These requests about each stream of the job."""
        return [
            f"{_API}.STREAM.{request}.{stream}" for request in requests for stream in self.names.all_streams
        ]

    def reward_queue(self) -> list[str]:
        """Requests that could disturb the queue of the reward workers."""
        queue = f"{self.names.stream(Channel.TRAJECTORIES)}.{_REWARD_QUEUE}"
        return [
            f"{_API}.CONSUMER.CREATE.{queue}.>",
            f"{_API}.CONSUMER.MSG.NEXT.{queue}",
            f"{_API}.CONSUMER.DELETE.{queue}",
        ]


def _follow(stream: str, subject: str) -> list[str]:
    return [
        f"{_API}.STREAM.INFO.{stream}",
        f"{_API}.CONSUMER.CREATE.{stream}.*.{subject}",
        f"{_API}.CONSUMER.MSG.NEXT.{stream}.*",
        f"{_API}.CONSUMER.DELETE.{stream}.*",
    ]


def permissions(holder: Holder, names: StreamNames, *, uid: str) -> Permissions:
    """What a role may do to the job with these names and that UID."""
    can = Operations(names)
    denied: list[str] = []
    match holder:
        case Holder.COORDINATOR:
            allowed = [
                *can.write(Channel.LEDGER, "claim", "records", "snapshot", "part"),
                *can.write(Channel.WORK, "engine.>"),
                *can.write(Channel.TRAINING, "trainer.*"),
                *can.write(Channel.EVENTS, holder),
                *can.write(Channel.VERSIONS, "policy"),
                *can.write(Channel.METRICS, "steps"),
                *can.write(Channel.REWARDS, "mark"),
                *can.signal(COORDINATOR_SIGNAL, f"{ENGINE_SIGNALS}>"),
                *can.take(Channel.EVENTS, ">", "coordinator"),
                *can.follow(Channel.LEDGER),
                *can.get(Channel.LEDGER, Channel.VERSIONS),
                *can.follow(Channel.TRAJECTORIES),
                *can.count(Channel.TRAJECTORIES, _REWARD_QUEUE),
                *can.follow(Channel.REWARDS),
                *can.list_and_get(Channel.PROGRESS),
                *can.purge(Channel.PROGRESS),
                *can.delete(Channel.TRAJECTORIES, Channel.REWARDS),
                *can.purge(Channel.WORK),
                *can.list_and_get(Channel.WEIGHTS),
                *can.follow_signals(),
            ]
            denied = can.reward_queue()
        case Holder.ROLLOUT:
            allowed = [
                *can.write(Channel.TRAJECTORIES, _PAYLOAD, _CHUNK, _ABSENT),
                *can.write(Channel.PROGRESS, ">"),
                *can.delete(Channel.PROGRESS),
                *can.write(Channel.EVENTS, holder),
                *can.signal(f"{ENGINE_SIGNALS}>"),
                *can.take(Channel.WORK, "engine.>"),
                *can.follow(Channel.VERSIONS),
                *can.get(Channel.WEIGHTS),
            ]
        case Holder.REWARD:
            allowed = [
                *can.write(Channel.REWARDS, "results"),
                *can.write(Channel.EVENTS, holder),
                *can.take(Channel.TRAJECTORIES, _PAYLOAD, _REWARD_QUEUE),
                *can.get(Channel.TRAJECTORIES),
            ]
        case Holder.TRAINER:
            allowed = [
                *can.write(Channel.EVENTS, holder),
                *can.take(Channel.TRAINING, "trainer.*"),
                *can.get(Channel.TRAJECTORIES),
                *can.write(Channel.WEIGHTS, "*.*"),
                *can.list_and_get(Channel.WEIGHTS),
                *can.purge(Channel.WEIGHTS),
            ]
        case Holder.READER:
            channels = (
                Channel.LEDGER,
                Channel.TRAJECTORIES,
                Channel.REWARDS,
                Channel.VERSIONS,
                Channel.METRICS,
            )
            allowed = [
                *can.all_streams("INFO"),
                *(subject for channel in channels for subject in can.follow(channel)),
                *can.get(*channels, Channel.WEIGHTS),
                *can.follow_signals(),
            ]
            denied = can.reward_queue()
    return Permissions(
        tuple(dict.fromkeys(allowed)), (f"{inbox_of(uid, holder)}.>",), publish_denied=tuple(denied)
    )


REPORTS = "rljob.reports"
"""First tokens of the subject on which the operator receives what the jobs' accounts send to it, each under its own
name: `rljob.reports.<account>.<suffix>`."""
REPORT = "report"
"""The same within a job's account."""

#: The operator as a user of the system account: it creates and deletes accounts, removes all streams of an account that
#: it is about to delete, receives the jobs' metrics, and asks how many servers there are and how much
#: storage each account has.
OPERATOR = Permissions(
    publish=(
        "$SYS.REQ.CLAIMS.UPDATE",
        "$SYS.REQ.CLAIMS.DELETE",
        "$SYS.REQ.SERVER.PING.STATSZ",
        "$SYS.REQ.SERVER.PING.JSZ",
        f"{_API}.ACCOUNT.PURGE.*",
    ),
    subscribe=(f"{REPORTS}.*.>", "_INBOX.>"),
)

#: The operator as a user of the account of a job's streams: it creates and enlarges them, and reads the engines'
#: signals when a pool shrinks.
JOB_OPERATOR = Permissions(
    publish=(
        *(f"{_API}.STREAM.{request}.*" for request in ("CREATE", "UPDATE", "INFO", "MSG.GET")),
        f"{_API}.DIRECT.GET.>",
        f"{_API}.CONSUMER.CREATE.>",
        f"{_API}.CONSUMER.INFO.*.*",
        f"{_API}.CONSUMER.MSG.NEXT.*.*",
        f"{_API}.CONSUMER.DELETE.*.*",
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
    f"{_API}.>": True,
}
