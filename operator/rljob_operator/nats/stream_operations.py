"""The subjects to which a client must be allowed to publish and subscribe for each operation on a job's streams."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames, stored_subject

API = "$JS.API"


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
        """Read all of a channel in order."""
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
        stream = self.names.stream(channel)
        return [f"{API}.CONSUMER.INFO.{stream}.{queue}", f"{API}.STREAM.INFO.{stream}", *self.get(channel)]

    def measure(self, channel: Channel) -> list[str]:
        """Read how much is stored."""
        return [f"{API}.STREAM.INFO.{self.names.stream(channel)}"]

    def delete(self, *channels: Channel) -> list[str]:
        """Delete messages by sequence, and read which of them are left."""
        deletions = [f"{API}.STREAM.MSG.DELETE.{self.names.stream(channel)}" for channel in channels]
        return [*deletions, *self.get(*channels)]

    def list_and_get(self, channel: Channel) -> list[str]:
        """List the suffixes, and read messages."""
        return [f"{API}.STREAM.INFO.{self.names.stream(channel)}", *self.get(channel)]

    def purge(self, channel: Channel) -> list[str]:
        """Delete a suffix's messages."""
        return [f"{API}.STREAM.PURGE.{self.names.stream(channel)}"]

    def all_streams(self, *requests: str) -> list[str]:
        """These requests about each stream of the job."""
        return [
            f"{API}.STREAM.{request}.{stream}" for request in requests for stream in self.names.all_streams
        ]

    def fill(self, *channels: Channel) -> list[str]:
        """Publish to all suffixes, begin at any sequence, and delete messages: what restores a stream."""
        return [
            *(subject for channel in channels for subject in self.write(channel, ">")),
            *(f"{API}.STREAM.PURGE.{self.names.stream(channel)}" for channel in channels),
            *self.delete(*channels),
        ]


def _get(stream: str) -> list[str]:
    return [
        f"{API}.{request}.{stream}" for request in ("DIRECT.GET", "STREAM.MSG.GET")
    ]  # of any replica; the leader


def _follow(stream: str) -> list[str]:
    return [f"{API}.STREAM.INFO.{stream}", *_get(stream)]
