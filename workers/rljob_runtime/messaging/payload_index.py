"""What the coordinator learns from the headers of the trajectory stream, and which chunks belong to which payload.

Messages are read in order, so the word that an engine stores nothing more comes after all its payloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_core.messages import MARK, MARK_HEADER
from rljob_core.messages.limits import LONGEST_NAME
from rljob_core.ports import Message
from rljob_core.site_border import is_forged_mark
from rljob_runtime.messaging.summaries import PayloadSummary, decode_summaries

SUMMARY_HEADER = "Rljob-Summary"
_OWNER_HEADER = "Rljob-Trajectory"
_ATTEMPT_HEADER = "Rljob-Attempt"
_ENGINE_HEADER = "Rljob-Engine"

PAYLOAD, CHUNK, ABSENT, DRAINED, GROUP = "payload", "chunk", "absent", "drained", "group"
"""First tokens of the suffixes of messages: a payload's last, its others; an engine's answer, and its last word; a
group that is to be scored.
"""


@dataclass(frozen=True, slots=True)
class LocatedSummary:
    """A summary and the position of its payload: the `index`-th trajectory of message `sequence`."""

    summary: PayloadSummary
    sequence: int
    index: int


@dataclass(frozen=True, slots=True)
class Absence:
    """An engine's answer that it has no payload of an assignment, except those that it stored before this message."""

    trajectory: str
    attempt: int
    engine: str
    sequence: int


@dataclass(frozen=True, slots=True)
class EndOfPayloads:
    """An engine's word that it has drained, and stores no payload after this message."""

    engine: str
    sequence: int


@dataclass(frozen=True, slots=True)
class SiteMark:
    """A coordinator's mark: everything is here that a site had stored when the mark came by.

    Attributes:
        site: the site.
        value: of the mark's header; empty if another site has forged it.
    """

    site: str
    value: str
    sequence: int


StreamItem = LocatedSummary | Absence | EndOfPayloads | SiteMark
"""What the coordinator reads in the trajectory stream."""


def owner_headers(trajectory: str, attempt: int) -> dict[str, str]:
    """Headers of a message that belongs to one attempt."""
    return {_OWNER_HEADER: trajectory, _ATTEMPT_HEADER: str(attempt)}


def engine_headers(engine: str) -> dict[str, str]:
    """Headers of a message in which an engine speaks of itself."""
    return {_ENGINE_HEADER: engine}


class PayloadIndex:
    """The messages that one reader has read."""

    def __init__(self) -> None:
        self._members: dict[int, tuple[PayloadSummary, ...]] = {}
        self._chunks: dict[str, dict[int, int]] = {}
        """Of each trajectory, the attempt of every chunk, and of every request to score it with others, by sequence."""

    def add(self, message: Message) -> list[StreamItem]:
        """Add the next message; returns what it says, which for a chunk or a group is nothing.

        Raises:
            CorruptPayload: the header of a payload does not decode.
        """
        kind, _, name = message.suffix.partition(".")
        if kind == PAYLOAD:
            found = decode_summaries(message.headers.get(SUMMARY_HEADER, ""))
            self._members[message.sequence] = tuple(found)
            return [LocatedSummary(summary, message.sequence, index) for index, summary in enumerate(found)]
        engine = message.headers.get(_ENGINE_HEADER, "")[:LONGEST_NAME]
        if kind == MARK:
            value = "" if is_forged_mark(name, message.headers) else message.headers.get(MARK_HEADER, "")
            return [SiteMark(name, value, message.sequence)]
        if kind == DRAINED:
            return [EndOfPayloads(engine, message.sequence)]
        owner = message.headers.get(_OWNER_HEADER, "")[:LONGEST_NAME]
        number = message.headers.get(_ATTEMPT_HEADER, "")
        attempt = int(number) if number.isdecimal() and len(number) < 16 else 0
        if kind in {CHUNK, GROUP}:
            self._chunks.setdefault(owner, {})[message.sequence] = attempt
            return []
        return [Absence(owner, attempt, engine, message.sequence)]

    def pop_chunks(self, sequences: Iterable[int]) -> list[int]:
        """Forget messages; returns the chunks that go with them.

        These are those of the messages' attempts and of all earlier ones, whose payloads may never have been completed.
        """
        cut = []
        for summary in (summary for sequence in sequences for summary in self._members.pop(sequence, ())):
            owned = self._chunks.get(summary.trajectory, {})
            done = [sequence for sequence, attempt in owned.items() if attempt <= summary.attempt]
            cut += done
            for sequence in done:
                del owned[sequence]
            if not owned:
                self._chunks.pop(summary.trajectory, None)
        return cut
