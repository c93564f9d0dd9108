"""The engines of one round of dispatch by site: the best engine of each site is compared with those of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rljob_core.planner.engine_choice import EngineView, rank
from rljob_core.planner.engine_queue import EngineQueue


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
