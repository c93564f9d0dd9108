"""Names of a job's NATS streams, subjects and inboxes.

Every name contains the namespace, the job's name and its UID, so that a job that is deleted and created again never
reads the old job's ledger. The workers use these names, and the operator writes them into each role's permissions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rljob_core.ports import Channel


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Names of one job's streams.

    Args:
        subject: the first tokens of all subjects.
        prefix: the first part of the names of all streams and buckets.
    """

    subject: str
    prefix: str

    @classmethod
    def of_job(cls, *, namespace: str, job: str, uid: str) -> Self:
        """The names of that job's streams."""
        return cls(f"rljob.{namespace}.{job}.{uid}", f"RLJOB_{namespace}_{job}_{uid}")

    def stream(self, channel: Channel) -> str:
        """A channel's stream."""
        return f"{self.prefix}_{channel.value}"

    def subject_of(self, channel: Channel, suffix: str) -> str:
        """The subject of a channel's suffix (wildcards as in NATS)."""
        return f"{self.subject}.{channel.value}.{suffix}"

    def suffix_of(self, channel: Channel, subject: str) -> str:
        """The suffix of a message's subject."""
        return subject[len(self.subject) + len(channel.value) + 2 :]

    @property
    def signal_stream(self) -> str:
        """The stream under the signal bucket, named so that NATS tools read it as a key-value bucket."""
        return f"KV_{self.prefix}_signals"

    @property
    def signal_subject(self) -> str:
        """Subject of the bucket's keys, with the last dot."""
        return f"$KV.{self.prefix}_signals."

    def beat_subject(self, site: str) -> str:
        """Where the coordinator publishes its heartbeat by way of a site: only the site's bucket takes it."""
        return f"to.{site}.{self.subject}.beat"

    def by_way_of(self, site: str) -> str:
        """All subjects on which the coordinator publishes by way of a site (`*`: of any)."""
        return f"to.{site}.{self.subject}.>"

    def mark_subject(self, site: str, channel: Channel) -> str:
        """Where the coordinator publishes a mark that comes behind what a site has stored in a channel."""
        return f"to.{site}.{self.subject}.mark.{channel.value}"

    @property
    def all_streams(self) -> list[str]:
        """Every stream of the job, the signal bucket's among them."""
        return [*map(self.stream, Channel), self.signal_stream]


STORED = "stored"
"""First token of the subjects on which the server says that a message is stored."""


def stored_subject(subject: str) -> str:
    """The subject on which the server says that a message is stored that was published to `subject`."""
    return f"{STORED}.{subject}"


def inbox_of(uid: str, role: str) -> str:
    """The first tokens of the subjects on which a role of a job receives replies; other roles cannot subscribe."""
    return f"_INBOX.{uid}.{role}"
