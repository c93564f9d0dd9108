"""Trajectories that kill every engine that generates them, or that cannot be scored; and the engine that they kill."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_core.ports import Request
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions


@dataclass(frozen=True)
class Poison:
    """What kills engines, or cannot be scored.

    Attributes:
        group: id of the group; of a held-out prompt: `e`, for every version, and the prompt.
        sibling: the only sibling that does; None if all of them do.
        tokens: for how many steps it is in the engine before that; a shorter response does no harm.
        reported: how likely the process that watches the engine reports its death.
        score: what reward workers say of it instead, if it harms no engine: an error, or a score that no sum can hold.
    """

    group: str
    sibling: int | None = None
    tokens: int = 0
    reported: float = 1.0
    score: str | float | None = None

    @property
    def is_held_out(self) -> bool:
        """Whether it is one of the held-out prompts."""
        return self.group.startswith("e")

    def is_in(self, trajectory: str) -> bool:
        """Whether this trajectory kills."""
        group, _, sibling = trajectory.rpartition(".")
        if group.startswith("e"):
            group = f"e{group.partition('-')[2]}"
        return group == self.group and self.sibling in {None, int(sibling)}


def any_poison(chance: random.Random, *, prompts: int, siblings: int) -> Poison | None:
    """Any poison among the first prompts of a job, or none."""
    kind = chance.choice(["none", "none", "none", "prompt", "sibling", "held out"])
    if kind == "none":
        return None
    prompt = chance.randrange(3 if kind == "held out" else prompts)
    poison = Poison(
        f"e{prompt}" if kind == "held out" else f"g{prompt}",
        sibling=chance.randrange(siblings) if kind == "sibling" else None,
        tokens=chance.choice([0, 0, 1, 8]),
        reported=chance.choice([0.0, 0.5, 1.0]),
    )
    score = chance.choice([None, None, "RewardTimeout: 10 s", 1.7e308, -1.7e308])
    return poison if poison.is_held_out or score is None else replace(poison, tokens=0, score=score)


class PoisonedEngine(EmulatedEngine):
    """An engine whose process dies of poison.

    Args:
        dies: ends the process; called with the poisonous trajectory.
    """

    def __init__(self, options: EmulatedEngineOptions, poison: Poison, dies: Callable[[str], Any]) -> None:
        super().__init__(options)
        self._poison, self._dies = poison, dies
        self._step_seconds = options.step_seconds
        self._fatal: dict[str, asyncio.TimerHandle] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        super().submit(requests)
        for request in requests:
            trajectory = request.id.partition("@")[0]
            if self._poison.is_in(trajectory):
                seconds = self._poison.tokens * self._step_seconds
                loop = asyncio.get_running_loop()
                self._fatal[request.id] = loop.call_later(seconds, self._die, request.id, trajectory)

    def _die(self, request: str, trajectory: str) -> None:
        running = {response.request.id for response in (*self._batch.running, *self._batch.waiting)}
        if request in running:
            self._dies(trajectory)

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        super().cancel(ids)
        for request in ids:
            if (timer := self._fatal.pop(request, None)) is not None:
                timer.cancel()
