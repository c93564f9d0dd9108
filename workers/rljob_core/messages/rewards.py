"""From reward workers: the scores of trajectories, as the reward stream stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import FiniteFloat, TypeAdapter

from rljob_core.failures import Failure
from rljob_core.omitted import OMITTED_IF_NONE

REWARD_QUEUE = "reward"
"""The durable queue over the trajectory stream that reward workers share."""
REWARD_ACK_WAIT = 10.0
"""Seconds until a message of that queue that is not acknowledged is delivered again."""
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
class RewardBatch:
    """One message of the reward stream."""

    results: tuple[RewardResult, ...]


REWARD_BATCH: TypeAdapter[RewardBatch] = TypeAdapter(RewardBatch)
