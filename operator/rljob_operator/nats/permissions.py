"""PURE. What each role may ask of NATS: the table behind its credentials.

Publishing is all there is to permit. A request to JetStream is published as well, its stream and consumer in its
subject, and what comes back arrives in the role's own inbox, the one thing that it may subscribe to. A reader's filter
is part of the subject on which its consumer is created, so a role reads only the suffixes that are named here.

Consumers' names have no parts that a permission could single out, hence one queue stream per receiving role, and one
denial: who reads trajectories in order may not touch the queue over them that reward workers share.
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
    """Who gets credentials of its own for a job; the names under which `rljob_runtime.main` runs them."""

    STREAMS = "streams"
    """Creates the job's streams, or lets them grow, before any other role starts."""
    COORDINATOR = "coordinator"
    ROLLOUT = "rollout"
    REWARD = "reward"
    TRAINER = "trainer"
    READER = "reader"
    """Whoever looks on: `rljob` and its audit. It can change nothing."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects, with NATS wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    publish_denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operations:
    """The subjects of what can be done with one job's streams."""

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
        """Take from the queue over a suffix, and acknowledge."""
        stream = self.names.stream(channel)
        return [
            f"{_API}.CONSUMER.CREATE.{stream}.{queue}.{self.names.subject_of(channel, suffix)}",
            f"{_API}.CONSUMER.MSG.NEXT.{stream}.{queue}",
            f"$JS.ACK.{stream}.{queue}.>",
        ]

    def get(self, *channels: Channel) -> list[str]:
        """Read messages by sequence, or the newest of a suffix."""
        return [f"{_API}.DIRECT.GET.{self.names.stream(channel)}" for channel in channels]

    def count(self, channel: Channel, queue: str) -> list[str]:
        """See how much a queue has yet to deal with; asks for its newest message, too."""
        stream = self.names.stream(channel)
        return [f"{_API}.CONSUMER.INFO.{stream}.{queue}", f"{_API}.STREAM.INFO.{stream}", *self.get(channel)]

    def delete(self, *channels: Channel) -> list[str]:
        """Delete messages by sequence, and see which of them are left."""
        deletions = [f"{_API}.STREAM.MSG.DELETE.{self.names.stream(channel)}" for channel in channels]
        return [*deletions, *self.get(*channels)]

    def list_and_get(self, channel: Channel) -> list[str]:
        """See which suffixes there are, and read messages."""
        return [f"{_API}.STREAM.INFO.{self.names.stream(channel)}", *self.get(channel)]

    def grow(self, channel: Channel) -> list[str]:
        """Set a stream's limits; and with them all else, so that no program that runs for long should be allowed to."""
        return [f"{_API}.STREAM.UPDATE.{self.names.stream(channel)}"]

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
        """Whatever could disturb the queue of the reward workers."""
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
        case Holder.STREAMS:
            allowed = [*can.all_streams("CREATE", "INFO"), *can.grow(Channel.TRAJECTORIES)]
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


#: The operator itself, over the jobs of all namespaces: it makes, enlarges and removes their streams, listens to
#: figures, and looks at engines' signals when a pool shrinks.
OPERATOR = Permissions(
    publish=(
        *(f"{_API}.STREAM.{request}.*" for request in ("CREATE", "UPDATE", "INFO", "DELETE", "MSG.GET")),
        f"{_API}.DIRECT.GET.>",
        f"{_API}.CONSUMER.CREATE.>",
        f"{_API}.CONSUMER.INFO.*.*",
        f"{_API}.CONSUMER.MSG.NEXT.*.*",
        f"{_API}.CONSUMER.DELETE.*.*",
    ),
    subscribe=(f"rljob.*.*.*.{Channel.METRICS}.>", "_INBOX.>"),
)

#: What users of the roles' account may ask of the streams' account, as far as their permissions go; True where one
#: request has several answers. JetStream's requests are one service: an account without JetStream answers parts of
#: them by itself, with a refusal.
SERVICES: dict[str, bool] = {
    "rljob.>": False,
    "$KV.>": False,
    "$JS.ACK.>": False,
    f"{_API}.>": True,
}
