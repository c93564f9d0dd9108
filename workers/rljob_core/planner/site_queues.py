"""The engines of one round of dispatch by site: the best engine of each site is compared with those of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush

from rljob_core.planner.engine_choice import EngineView, Rank, rank


class EngineQueue:
    """Answers as `choose` does for one trajectory at a time, without looking at every engine each time.

    It is a heap whose keys may be out of date: an engine that has been given something since is put back with its new
    key when it comes first. Signals do not change engines within a round.

    Args:
        engines: those that may take work.
        prefetch: see `PlannerContext`.
        tokens: see `EngineView.gain`.
        by_profile: whether all engines have profiles, if these are compared with others.
    """

    def __init__(
        self,
        engines: Collection[EngineView],
        *,
        prefetch: float,
        tokens: float,
        by_profile: bool | None = None,
    ) -> None:
        self._prefetch, self._tokens = prefetch, tokens
        have = all(engine.profile is not None for engine in engines)
        self._by_profile = have if by_profile is None else by_profile
        self._engines = {engine.engine: engine for engine in engines}
        self._heap = [self._key(engine) for engine in engines]
        heapify(self._heap)

    def choose(self, *, min_version: int, waits: bool, together: int = 1) -> EngineView | None:
        """The engine whose throughput one trajectory raises the most; None if none has room. See `choose`."""
        passed: list[Rank] = []
        found = None
        while self._heap and found is None:
            key = heappop(self._heap)
            engine = self._engines[key[2]]
            if engine.room(self._prefetch) <= 0:
                continue
            if (now := self._key(engine)) != key:
                heappush(self._heap, now)
                continue
            passed.append(key)
            if engine.takes(together, self._prefetch) and engine.admits(min_version, waits=waits):
                found = engine
        for key in passed:
            heappush(self._heap, key)
        return found

    def _key(self, engine: EngineView) -> Rank:
        return rank(engine, by_profile=self._by_profile, tokens=self._tokens)


class SiteQueues:
    """An `EngineQueue` for each site, the hub among them; one alone answers as that queue does.

    Args:
        engines: those that may take work.
        prefetch: see `PlannerContext`.
        tokens: see `EngineView.gain`.
    """

    def __init__(self, engines: Collection[EngineView], *, prefetch: float, tokens: float) -> None:
        self._tokens = tokens
        self._by_profile = all(engine.profile is not None for engine in engines)
        by_site: dict[str, list[EngineView]] = {}
        for engine in engines:
            by_site.setdefault(engine.site, []).append(engine)
        self._queues = [
            EngineQueue(some, prefetch=prefetch, tokens=tokens, by_profile=self._by_profile)
            for some in by_site.values()
        ]

    def choose(
        self, *, min_version: int, waits: bool, share: Callable[[EngineView], float], together: int = 1
    ) -> EngineView | None:
        """The engine for which a trajectory is worth the most; None if none has room. See `choose`."""
        heads = [
            queue.choose(min_version=min_version, waits=waits, together=together) for queue in self._queues
        ]
        found = [head for head in heads if head is not None]
        if len(found) < 2:
            return found[0] if found else None
        by_profile, tokens = self._by_profile, self._tokens
        return min(found, key=lambda e: rank(e, by_profile=by_profile, tokens=tokens, share=share(e)))
