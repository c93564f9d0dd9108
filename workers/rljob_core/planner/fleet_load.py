"""What all engines together generate and hold, kept as signals come: no decision has to look at every engine."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.planner.engine_choice import EngineView


@dataclass(slots=True)
class FleetLoad:
    """Sums over the engines' last signals.

    Attributes:
        running, context: trajectories that are generated, and the tokens that these have together.
        cached, kv_tokens: of the engines that say how much their KV caches hold, the tokens in them and that number.
    """

    running: int = 0
    context: int = 0
    cached: int = 0
    kv_tokens: int = 0

    def add(self, view: EngineView) -> None:
        """Count an engine, unless it cannot be reached."""
        self._count(view, 1)

    def remove(self, view: EngineView) -> None:
        """Count an engine no longer, before what it says changes or it is gone."""
        self._count(view, -1)

    def _count(self, view: EngineView, sign: int) -> None:
        if not view.reachable:
            return
        self.running += sign * view.running
        self.context += sign * view.context
        if view.kv_tokens:
            self.cached += sign * view.context
            self.kv_tokens += sign * view.kv_tokens

    @property
    def mean_tokens(self) -> float:
        """Tokens that a running trajectory has on average, prompt included; 0 if none runs."""
        return self.context / self.running if self.running else 0.0

    @property
    def cache_share(self) -> float:
        """Share of the KV caches that is in use; 0 if no engine says how large its is."""
        return self.cached / self.kv_tokens if self.kv_tokens else 0.0
