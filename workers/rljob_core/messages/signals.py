"""Heartbeats: the keys and values of the job's signal bucket."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

ENGINE_SIGNALS = "engine."
"""First part of the keys of engines: `engine.<instance>` holds an `EngineSignal`."""
COORDINATOR_SIGNAL = "coordinator"
"""The key that holds the instance of the coordinator that wrote it last: the coordinator's own heartbeat."""
SITE_SIGNALS = "site."
"""First part of the keys of sites: `site.<site>` holds the instance of the coordinator whose heartbeat came back from
there last."""
AWAITED = "WeightsAwaited"
"""`EngineSignal.stuck` of an engine whose site does not have the announced weights yet."""
REJECTED = "WeightsRejected"
"""`EngineSignal.stuck` of an engine whose newest weights do not match their manifest."""
UNAVAILABLE = "WeightsUnavailable"
"""`EngineSignal.stuck` of an engine whose weights the store does not deliver."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How long a decode step takes: `seconds`, plus a share per running sequence and per token of their contexts.

    Attributes:
        seconds: of an empty step.
        seconds_per_slot: per running sequence.
        seconds_per_context_token: per token, prompt and response, of all running sequences.
        steps: how many measured steps the profile was fitted to.
    """

    seconds: float
    seconds_per_slot: float
    seconds_per_context_token: float
    steps: int

    def step(self, *, batch: int, context: float) -> float:
        """Predicted seconds of a step of `batch` sequences that have `context` tokens together."""
        return self.seconds + batch * self.seconds_per_slot + context * self.seconds_per_context_token


LONGEST = 8
"""Trajectories that a signal names at most."""
SWAPS_SIGNALLED = 4
"""Swaps of weights that a signal names at most: the newest ones."""


@dataclass(frozen=True, slots=True)
class WeightSwap:
    """An engine took new weights; meanwhile it generated nothing, or (`inflight: Keep`) only what it had begun.

    Attributes:
        version: that it has had since.
        began: seconds since 1970, by the engine's clock.
        seconds: for how long.
    """

    version: int
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineSignal:
    """An engine's heartbeat: its weights and its load.

    Attributes:
        engine: instance name, `<pod>.<nonce>`.
        epoch: writer epoch of the announcement that its version came with.
        version: policy version of its weights.
        held: trajectories that it has taken and that have not ended: waiting, generating, or being stored.
        slots: trajectories that it generates at once.
        running, waiting: trajectories that it generates, and that it holds until weights or a slot are available.
        tokens: generated since it started.
        draining: whether it takes no more work.
        started: seconds since 1970. Of two instances of one pod the later one is alive.
        stuck, stuck_detail: why it cannot load the newest weights now, as one of the words above and for people; empty
            if it can. It is only given what its own weights may generate.
        profile: of its decode steps, once they have been measured.
        context: tokens, prompts and responses, of the running trajectories; 0 if the engine does not say.
        kv_tokens: how many tokens its KV cache holds; None if the engine does not say, or any number.
        longest: of the running trajectories those that have the most tokens and could be released, each with its
            attempt and how many tokens of its response are stored; `LONGEST` at most.
        site: where it is, empty for the hub.
        outbox_bytes, outbox_limit: of an engine at a site, what its server has stored for the hub of all engines there,
            and how much it may store; 0 for no limit, or if the engine does not say.
        swaps: its newest swaps of weights, `SWAPS_SIGNALLED` at most, the newest last.
        announced: the newest version that was announced to it, which it may take later; 0 before one was.
        in_environment: of those that it holds, episodes that wait for their environment: they need no slot.
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
    stuck_detail: str = ""
    profile: EngineProfile | None = None
    context: int = 0
    kv_tokens: int | None = None
    longest: tuple[tuple[str, int, int], ...] = ()
    site: str = ""
    outbox_bytes: int = 0
    outbox_limit: int = 0
    swaps: tuple[WeightSwap, ...] = ()
    announced: int = 0
    in_environment: int = 0


ENGINE_SIGNAL: TypeAdapter[EngineSignal] = TypeAdapter(EngineSignal)
