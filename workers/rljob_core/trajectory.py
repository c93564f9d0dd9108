"""Trajectories: the tokens of one sample, who produced them, and under which policy versions.

A *group* is the G sibling samples of one prompt. Its id is ``g<prompt>`` for training and
``e<version>-<prompt>`` for evaluation; a trajectory's id is ``<group>.<sibling>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: A one-dimensional array: a NumPy array where it was decoded from a message, any sequence of numbers elsewhere. The
#: core only passes it on.
Array = Any


class Source(StrEnum):
    """Who produced a segment's tokens."""

    PROMPT = "prompt"
    MODEL = "model"
    ENVIRONMENT = "environment"


class State(StrEnum):
    """A trajectory's place in its life; every transition is in the ledger (`docs/design/staleness.md`)."""

    PLANNED = "planned"
    RESERVED = "reserved"
    GENERATING = "generating"
    GENERATED = "generated"
    REWARDED = "rewarded"
    READY = "ready"
    TRAINING = "training"
    CONSUMED = "consumed"
    ABORTED = "aborted"


class FinishReason(StrEnum):
    """Why generation of a trajectory ended."""

    STOP = "stop"
    LENGTH = "length"
    UNFINISHED = "unfinished"
    """It has not ended: what is stored is progress."""


@dataclass(frozen=True, slots=True, order=True)
class VersionSpan:
    """The oldest and the newest policy version that produced a token of a response."""

    min: int
    max: int

    def __or__(self, other: VersionSpan) -> VersionSpan:
        """The span that covers both."""
        return VersionSpan(min(self.min, other.min), max(self.max, other.max))


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens from one source.

    Attributes:
        source: who produced them.
        tokens: int32 [n].
        loss_mask: uint8 [n], 1 where the token is trained on (only model tokens can be).
        logprobs: float32 [n], log-probability of each sampled token under the tempered, untruncated
            distribution of the weights that produced it; 0 where the source is not the model.
        versions: int32 [n], policy version that produced each token; -1 where the source is not the model.
    """

    source: Source
    tokens: Array
    loss_mask: Array
    logprobs: Array
    versions: Array


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample of one prompt, as an engine produced it.

    Attributes:
        id: ``<group>.<sibling>``.
        attempt: counts the generations of this sibling; only results of the current one count.
        prompt: index of the prompt in the job's data order (seeds and rewards derive from it).
        segments: in order; single-turn has two (prompt, model).
        span: versions over the model's tokens.
        finish: why generation ended.
        engine: instance that generated it.
        sample: ``sampled`` or ``greedy`` (evaluation has both).
        score: what its environment gave the episode; None if the job has no environment.
    """

    id: str
    attempt: int
    prompt: int
    segments: Sequence[Segment]
    span: VersionSpan
    finish: FinishReason
    engine: str
    sample: str = "sampled"
    score: float | None = None

    @property
    def response_tokens(self) -> int:
        """How many tokens the model produced."""
        return sum(len(s.tokens) for s in self.segments if s.source is Source.MODEL)


def group_id(prompt: int) -> str:
    """The id of the group that answers a prompt; it is the same if the prompt is planned again."""
    return f"g{prompt}"


def prompt_of_group(group: str) -> int:
    """The prompt that a (training) group answers."""
    return int(group.removeprefix("g"))


def trajectory_id(group: str, sibling: int) -> str:
    """The id of a group's sibling."""
    return f"{group}.{sibling}"


def group_of(trajectory: str) -> str:
    """The group that a trajectory's id belongs to."""
    return trajectory.rpartition(".")[0]


def sibling_of(trajectory: str) -> int:
    """The position of a trajectory in its group."""
    return int(trajectory.rpartition(".")[2])


def is_evaluation(identifier: str) -> bool:
    """Whether a group's or trajectory's id is outside the staleness buffers."""
    return identifier.startswith("e")
