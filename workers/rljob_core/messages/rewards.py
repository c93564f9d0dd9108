"""From reward workers: the scores of trajectories, as the reward stream stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, TypeAdapter

from rljob_core.failures import Failure
from rljob_core.record_fields import OMITTED_IF_NONE

REWARD_QUEUE = "reward"
"""The durable queue over the trajectory stream that reward workers share."""
REWARD_ACK_WAIT = 10.0
"""Seconds until a message of that queue that is not acknowledged is delivered again."""
LARGEST_GROUP = 1024
"""Answers to one prompt (`spec.data.groupSize`)."""
MARK, MARK_HEADER = "mark", "Rljob-Mark"
"""Suffix of an empty message in the reward stream, and its header `<coordinator's instance>/<number of the check>`.

A coordinator stores it behind all scores of a check (`CheckRewards`): once it reads the mark back, it has read them.
Marks that come by way of a site (`SendMark`) are among payloads and progress, with the site's name in their suffix.
"""


def site_mark(site: str) -> str:
    """Suffix of marks that come by way of a site."""
    return f"{MARK}.{site}"


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A trajectory's score, or why it has none.

    Attributes:
        payload_digest: digest of the payload that was scored.
        parts: the parts of the reward, by name.
        digest: digest of this result, for the audit.
        failure: why it has no score; None if it has.
        sample: `sampled` or `greedy`.
    """

    trajectory: str
    attempt: int
    payload_digest: str
    reward: FiniteFloat
    parts: dict[str, FiniteFloat]
    digest: str
    failure: Annotated[Failure | None, OMITTED_IF_NONE] = None
    sample: str = "sampled"
    kind: Literal["reward"] = "reward"

    @property
    def error(self) -> str:
        """The failure in words; empty if there is none."""
        return str(self.failure or "")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An answer that is scored together with others, and where it is stored.

    Attributes:
        digest: of its payload.
        sequence, index: of the message in the trajectory stream, and of the payload in it.
    """

    trajectory: str
    attempt: int
    digest: str
    sequence: int
    index: int


@dataclass(frozen=True, slots=True)
class ScoreGroup:
    """The coordinator's request to score a group, all of whose answers are stored; a held-out answer is one alone.

    It is a message of the trajectory stream, like the answers, and is deleted with its first one.
    """

    members: Annotated[tuple[GroupMember, ...], Field(min_length=1, max_length=LARGEST_GROUP)]


SCORE_GROUP: TypeAdapter[ScoreGroup] = TypeAdapter(ScoreGroup)


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """One message of the reward stream."""

    results: tuple[RewardResult, ...]


REWARD_BATCH: TypeAdapter[RewardBatch] = TypeAdapter(RewardBatch)
