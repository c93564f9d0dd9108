"""From reward workers: the scores of trajectories, as the reward stream stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

REWARD_QUEUE = "reward"
"""The durable queue over the trajectory stream that reward workers share."""
MARK, MARK_HEADER = "mark", "Rljob-Mark"
"""Suffix, in the reward stream, of an empty message that a coordinator waits to read back, and whose it is."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A trajectory's score, or why it has none."""

    trajectory: str
    attempt: int
    payload_digest: str
    reward: float
    parts: dict[str, float]
    digest: str
    error: str = ""
    sample: str = "sampled"
    kind: Literal["reward"] = "reward"


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """One message of the reward stream."""

    results: tuple[RewardResult, ...]


REWARD_BATCH: TypeAdapter[RewardBatch] = TypeAdapter(RewardBatch)
