"""Measures what swaps of weights cost an engine, by the tokens that come, and says when the next one is worth it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_core.ports import CacheKeeper, Engine, EngineLoad
from rljob_core.spec import SwapTime
from rljob_core.weight_sync import WeightSync
from rljob_runtime.roles.rollout.running import Running
from rljob_runtime.roles.rollout.versions import AnnouncedVersion

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_LONGEST_SECONDS = 60.0
"""After a swap, for which tokens are awaited at most."""


@dataclass(frozen=True, slots=True)
class _Swapped:
    """A swap of weights whose cost is being measured.

    Attributes:
        load: of the engine when it began.
        ended: when it had new weights, on the event loop's clock.
        tokens: that the engine had made by then.
        contexts: what had to be computed again, and what has begun since: tokens, or responses if the engine does not
            say how many tokens it has.
    """

    load: EngineLoad
    ended: float
    tokens: int
    contexts: float


class SwapCosts:
    """The measured costs of one engine's swaps, and what follows from them.

    A swap costs the engine the time that it takes, without the time of the steps that were made meanwhile: engines read
    and stage weights beside generating. After it, to compute caches again takes the time until each response that was
    running has a token more, without the time of that step.

    Args:
        engine: takes the weights.
        time: `spec.rollout.weightSync`.
    """

    def __init__(self, engine: Engine, time: SwapTime) -> None:
        self._engine = engine
        self._caches = engine if isinstance(engine, CacheKeeper) and engine.recompute_cache is None else None
        recomputes = engine.recompute_cache if isinstance(engine, CacheKeeper) else True
        self._sync = WeightSync(time, recomputes)
        self._began: tuple[EngineLoad, float] | None = None
        self._swapped: _Swapped | None = None
        self._has_swapped = asyncio.Event()

    def is_due(self, announced: AnnouncedVersion, *, idle: bool, needed: bool) -> bool:
        """Whether the engine takes the newest announced version now; for `idle` and `needed` see `WeightSync`."""
        if announced.newest is None:
            return True
        version = announced.newest.version
        self._sync.announced(version, announced.since)
        behind = version - self._engine.version
        return self._sync.is_due(behind, context=_contexts(self._engine.load()), idle=idle, needed=needed)

    def begin(self) -> None:
        """A swap begins: note what the engine does, and choose what becomes of its caches."""
        load = self._engine.load()
        if self._caches is not None:
            self._caches.recompute_cache = self._sync.recomputes(_contexts(load))
        self._swapped = None
        self._began = load, asyncio.get_running_loop().time()

    def end(self, begun: Iterable[Running]) -> None:
        """It has ended well.

        Args:
            begun: what the engine has been given since.
        """
        began, self._began = self._began, None
        if began is None or not began[0].running:
            return  # it has stopped nothing
        (before, at), load, now = began, self._engine.load(), asyncio.get_running_loop().time()
        step = _step_seconds(before)
        steps = (load.tokens - before.tokens) / before.running
        if step or steps < 1:
            self._sync.stood(now - at - steps * step)
        more = sum(running.prefill_tokens if before.context else 1 for running in begun)
        if isinstance(self._engine, CacheKeeper) and self._engine.recompute_cache is False:
            self._sync.kept()
            return
        self._swapped = _Swapped(before, now, load.tokens, _contexts(before) + more)
        self._has_swapped.set()

    async def measure_recomputing(self) -> None:
        """Measure after each swap how long caches are computed again, until cancelled."""
        while True:
            await self._has_swapped.wait()
            self._has_swapped.clear()
            if (swapped := self._swapped) is not None and await self._has_caught_up(swapped):
                now = asyncio.get_running_loop().time()
                seconds = now - swapped.ended - _step_seconds(swapped.load) - _POLL_SECONDS
                self._sync.recomputed(seconds, swapped.contexts)
                log.debug(
                    "a swap takes %.2f s, and caches %.2f s; there is one every %.1f s",
                    self._sync.standing,
                    seconds,
                    self._sync.interval,
                )

    async def _has_caught_up(self, swapped: _Swapped) -> bool:
        """Wait until each response that was running has a token more; False if that cannot be seen."""
        loop = asyncio.get_running_loop()
        while self._swapped is swapped and loop.time() < swapped.ended + _LONGEST_SECONDS:
            load = self._engine.load()
            if load.tokens >= swapped.tokens + swapped.load.running:
                return True
            if not load.running:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return False


def _step_seconds(load: EngineLoad) -> float:
    """Seconds of a decode step, by the engine's profile; 0 before it has one."""
    return 0.0 if load.profile is None else load.profile.step(batch=load.running, context=load.context)


def _contexts(load: EngineLoad) -> float:
    """What a swap would have computed again: tokens, or responses if the engine does not say."""
    return load.context or load.running
