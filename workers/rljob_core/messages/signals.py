"""Heartbeats: the keys and values of the job's signal bucket."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

ENGINE_SIGNALS = "engine."
"""Keys of the signal bucket: `engine.<instance>` holds an `EngineSignal` …"""
COORDINATOR_SIGNAL = "coordinator"
"""… and this one the instance of the coordinator that wrote it last, its own heartbeat."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How long a decode step takes: `seconds` and more for each running sequence and each token of their contexts.

    `steps` are those that it was learned from.
    """

    seconds: float
    seconds_per_slot: float
    seconds_per_context_token: float
    steps: int

    def step(self, *, batch: int, context: int) -> float:
        """Seconds of a step with so many sequences of so many tokens together."""
        return self.seconds + batch * self.seconds_per_slot + context * self.seconds_per_context_token


@dataclass(frozen=True, slots=True)
class EngineSignal:
    """An engine's heartbeat: what it is and how it does.

    Attributes:
        epoch: of the announcement that its version came with.
        held: assignments that it has taken and that have not ended: to be generated, generating, or being stored.
        slots: trajectories that it generates at once.
        running, waiting: trajectories generating, and held until weights or a slot are there.
        tokens: generated since it started.
        started: when, in seconds since 1970: of two instances of one pod, the later one lives.
        stuck: why it cannot have the newest weights now; it is given only what its own admit.
        profile: of its decode steps, once they have been measured.
    """

    engine: str
    pool: str
    epoch: int
    version: int
    held: int
    slots: int
    running: int
    waiting: int
    tokens: int
    draining: bool = False
    started: float = 0.0
    stuck: str = ""
    profile: EngineProfile | None = None


ENGINE_SIGNAL: TypeAdapter[EngineSignal] = TypeAdapter(EngineSignal)
