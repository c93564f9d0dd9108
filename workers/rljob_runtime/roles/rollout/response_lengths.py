"""Says how many tokens each response has, to the process that repeats it in the report of the engine's death.

An engine that dies cannot say it any more. So this is said beforehand, often and in few words: when a response begins
and ends, and how many decode steps the engine has made, each of which makes one token of every running response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice

from rljob_core.ports import Engine
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.running import Running

_EVERY_SECONDS = 0.25


class TokenCounts:
    """Counts the tokens of one engine's responses by its steps.

    Args:
        engine: generates them.
        alive: takes the word of it.
        running: what the engine has to generate, by request, in the order in which it was submitted.
    """

    def __init__(self, engine: Engine, alive: AliveWriter, running: Mapping[str, Running]) -> None:
        self._engine = engine
        self._alive = alive
        self._running = running
        self._said: dict[str, str] = {}
        self._steps, self._tokens, self._batch = 0.0, 0, 0

    async def say_forever(self) -> None:
        """Say it until cancelled."""
        while True:
            self.say()
            await asyncio.sleep(_EVERY_SECONDS)

    def say(self) -> None:
        """Say what has changed since the last call."""
        load = self._engine.load()
        # Responses begin in the order in which they were submitted.
        begun = dict(islice(self._running.items(), max(0, len(self._running) - load.waiting)))
        self._steps += max(0, load.tokens - self._tokens) / max(1, (load.running + self._batch) / 2)
        if load.tokens != self._tokens:
            self._alive.steps(int(self._steps))
        self._tokens, self._batch = load.tokens, load.running
        for request in self._said.keys() - begun.keys():
            self._alive.end(self._said.pop(request))
        for request, running in begun.items():
            if request not in self._said:
                work = running.work
                self._alive.make(
                    work.trajectory, running.made if work.inherited is None else work.inherited.tokens
                )
                self._said[request] = work.trajectory
