"""From the coordinator to an engine: generate these trajectories, stop those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.records import Inherited

Sample = Literal["sampled", "greedy"]
"""How an answer is drawn: by spec.rollout.sampling, or the likeliest token each time."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate one trajectory.

    Attributes:
        text: the rendered prompt; the engine's worker tokenizes it.
        min_version: an engine whose weights are older waits for new ones before it starts.
        sample: `sampled` (spec.rollout.sampling) or `greedy`.
        seed: of this sample's random draws.
        inherited: what it goes on from; an engine that cannot have it gives the trajectory back.
    """

    trajectory: str
    attempt: int
    prompt: int
    text: str
    min_version: int
    sample: Sample
    seed: int
    inherited: Inherited | None = None
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop generating these, and do not begin to: ids and, one by one, attempts."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    kind: Literal["cancel"] = "cancel"


EngineWork = Generate | Cancel


@dataclass(frozen=True, slots=True)
class EngineWorkBatch:
    """One message of an engine's queue."""

    epoch: int
    items: tuple[Annotated[EngineWork, Field(discriminator="kind")], ...]


ENGINE_WORK: TypeAdapter[EngineWorkBatch] = TypeAdapter(EngineWorkBatch)
