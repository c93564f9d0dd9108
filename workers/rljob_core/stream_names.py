"""PURE. What a job's streams, subjects and inboxes are called (DESIGN §6).

All names begin with namespace, job and the job's UID, so that a recreated job never meets an old ledger. The workers
use them, and the operator writes them into each role's permissions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rljob_core.ports import Channel


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Names of one job's streams.

    Args:
        subject: first tokens of all subjects.
        prefix: first part of all stream and bucket names.
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

    @property
    def all_streams(self) -> list[str]:
        """Every stream of the job, the signal bucket's among them."""
        return [*map(self.stream, Channel), self.signal_stream]


def inbox_of(uid: str, role: str) -> str:
    """First tokens of the subjects on which a role of a job gets answers: nobody else may listen there."""
    return f"_INBOX.{uid}.{role}"
