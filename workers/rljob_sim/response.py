"""Responses of simulated engines: while they are generated, when they have ended, and when they are given back."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.emulation import EngineSequence
from rljob_core.messages import Generate
from rljob_core.trajectory import VersionSpan


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedResponse(EngineSequence):
    """A sequence with the work that asks for it.

    Attributes:
        work: that asks for it.
        oldest: version of its oldest token; -1 before it has one.
    """

    work: Generate
    oldest: int = -1


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """A response that has ended."""

    work: Generate
    span: VersionSpan
    tokens: int


@dataclass(frozen=True, slots=True)
class ReleasedResponse:
    """A response that has not ended, for another engine to continue: its versions and its tokens so far."""

    work: Generate
    span: VersionSpan
    tokens: int
