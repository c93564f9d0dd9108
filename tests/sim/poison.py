"""Prompts that no engine survives, refuses, answers or can be sent, or whose responses cannot be scored."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rljob_core.failures import Failure, Reason
from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions

KINDS = ("dies", "hangs", "refuses", "empty", "unsendable", "unscored")
"""What an engine does with poison: it dies, hangs, raises an error in `submit`, or responds with no tokens; or the
prompt cannot be sent to any engine; or the engine generates it and the reward workers cannot score it."""
LONGER_THAN_A_MESSAGE = 1 << 20


@dataclass(frozen=True)
class Poison:
    """What harms an engine, cannot be sent to one, or cannot be scored.

    Attributes:
        group: id of the group; of a held-out prompt: `e`, for every version, and the prompt.
        kind: one of `KINDS`.
        sibling: the only sibling that does; None if all of them do.
        tokens: for how many steps it is in the engine before it dies or hangs; a shorter response does no harm.
        reported: how likely the process that watches the engine reports its death.
        score: what reward workers say of what is unscored: an error, or a score that no sum can hold.
    """

    group: str
    kind: str = "dies"
    sibling: int | None = None
    tokens: int = 0
    reported: float = 1.0
    score: Failure | float | None = None

    @property
    def is_held_out(self) -> bool:
        """Whether it is one of the held-out prompts."""
        return self.group.startswith("e")

    def is_in(self, trajectory: str) -> bool:
        """Whether this trajectory is poisonous."""
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
    score = chance.choice([None, None, Failure(Reason.REWARD_TIMEOUT, "10 s"), 1.7e308, -1.7e308])
    if not poison.is_held_out and score is not None:
        return replace(poison, kind="unscored", tokens=0, score=score)
    kind = chance.choice(["dies", "dies", "hangs", "refuses", "empty", "unsendable"])
    if kind == "unsendable":
        return replace(poison, kind=kind, sibling=None, tokens=0)
    return replace(poison, kind=kind, tokens=poison.tokens if kind in {"dies", "hangs"} else 0)


def unsendable(prompt: int) -> str:
    """The text of a prompt that no engine can be sent: too long for a message, or no Unicode; or its data raises."""
    match prompt % 3:
        case 0:
            return f"prompt {prompt} ".ljust(LONGER_THAN_A_MESSAGE, ".")
        case 1:
            return f"prompt {prompt} \ud800"
    raise ValueError(f"row {prompt} cannot be read")


class PoisonedEngine(EmulatedEngine):
    """An engine that dies of poison, hangs, refuses it, or gives no token for it.

    Args:
        dies: ends the process; called with the poisonous trajectory.
        happened: counts what the engine does.
    """

    def __init__(
        self,
        options: EmulatedEngineOptions,
        poison: Poison,
        dies: Callable[[str], Any],
        happened: Counter[str],
    ) -> None:
        super().__init__(options)
        self._poison, self._dies, self._happened = poison, dies, happened
        self._step_seconds = options.step_seconds
        self._fatal: dict[str, asyncio.TimerHandle] = {}
        self._hangs = False

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        super().submit(requests)
        for request in requests:
            trajectory = request.id.partition("@")[0]
            if not self._poison.is_in(trajectory):
                continue
            if self._poison.kind == "refuses":
                self._happened["refused by the engine"] += 1
                raise RuntimeError(f"no kernel for {trajectory}")
            if self._poison.kind in {"dies", "hangs"}:
                seconds = self._poison.tokens * self._step_seconds
                loop = asyncio.get_running_loop()
                self._fatal[request.id] = loop.call_later(seconds, self._harm, request.id, trajectory)

    def _harm(self, request: str, trajectory: str) -> None:
        running = {response.request.id for response in (*self._batch.running, *self._batch.waiting)}
        if request not in running:
            return
        if self._poison.kind == "dies":
            self._dies(trajectory)
        elif not self._hangs:
            self._hangs = True
            self._happened["engine hangs"] += 1

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one; none of an engine that hangs, until it is closed."""
        while True:
            found = await super().events()  # raises once it is closed
            if not self._hangs:
                return found

    def load(self) -> EngineLoad:
        """How busy it is: what hangs is busy for ever."""
        return EngineLoad(self.slots, 0, 0) if self._hangs else super().load()

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far the requests have come; nothing of an engine that hangs."""
        return [] if self._hangs else await super().progress(least)

    def _completed(self, response: Any) -> Completed:
        completed = super()._completed(response)
        if self._poison.kind != "empty" or not self._poison.is_in(completed.id.partition("@")[0]):
            return completed
        self._happened["empty response"] += 1
        none = np.zeros(0, np.int32)
        return replace(completed, tokens=none, logprobs=np.zeros(0, np.float32), versions=none)

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        super().cancel(ids)
        for request in ids:
            if (timer := self._fatal.pop(request, None)) is not None:
                timer.cancel()
