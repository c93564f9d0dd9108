"""`spec.pipeline`: how rollout and training overlap, and how many versions old trained tokens may be."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_core.spec.base import ApiModel, Rule, enum_field


class Mode(StrEnum):
    """How rollout and training overlap."""

    SYNCHRONOUS = "Synchronous"
    STREAMING = "Streaming"
    BOUNDED_ASYNC = "BoundedAsync"


class Inflight(StrEnum):
    """What a running trajectory does when new weights are published."""

    KEEP = "Keep"
    UPDATE = "Update"
    RESTART = "Restart"


class PipelineSpec(ApiModel):
    """How far generation may run ahead of training, and what happens where they meet."""

    mode: enum_field(Mode) = Mode.BOUNDED_ASYNC  # type: ignore[valid-type]
    """Synchronous: generate, then train. Streaming: the trainer starts on a step's first groups, still on-policy.
    BoundedAsync: generation runs ahead, by maxStaleness versions at most."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] | None = None
    """η: versions by which a trajectory may be behind the policy that trains on it. With BoundedAsync at least 1, and 1
    if absent; else 0. Patch it together with mode."""
    inflight: enum_field(Inflight) = Inflight.UPDATE  # type: ignore[valid-type]
    """What a running trajectory does when new weights are published: Update continues under them, Keep ends under its
    own, Restart starts over."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Generations of one sample that may fail before its prompt is given up."""
    max_resamples: Annotated[int, Field(ge=0, le=65536)] = 16
    """Groups with equal rewards that a step replaces (algorithm.dropUniformGroups); past it they are used, with zero
    advantage."""

    window: Annotated[float, Field(ge=0, le=64)] = 0.75
    """Share of a step's batch that is begun ahead while the trainer has a whole step to train; the rest waits for the
    newest weights. 0: all that maxStaleness allows is begun at once."""

    rules = (
        Rule(
            "maxStaleness",
            "self.mode == 'BoundedAsync' || !has(self.maxStaleness) || self.maxStaleness == 0",
            "maxStaleness must be 0 with mode Synchronous or Streaming: remove it, or set mode to BoundedAsync",
            lambda s: s.mode == Mode.BOUNDED_ASYNC or not s.max_staleness,
        ),
        Rule(
            "maxStaleness",
            "self.mode != 'BoundedAsync' || !has(self.maxStaleness) || self.maxStaleness >= 1",
            "maxStaleness must be at least 1 with mode BoundedAsync: raise it, or set mode to Streaming",
            lambda s: s.mode != Mode.BOUNDED_ASYNC or s.max_staleness is None or s.max_staleness >= 1,
        ),
    )

    @property
    def bound(self) -> int:
        """η with its default filled in."""
        if self.max_staleness is not None:
            return self.max_staleness
        return 1 if self.mode == Mode.BOUNDED_ASYNC else 0
