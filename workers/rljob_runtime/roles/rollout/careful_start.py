"""After a crash, the interrupted groups are submitted to the next engine one by one: another crash names its cause.

What kills an engine mostly does so with its first token, and then it is one of many that the engine has begun at once.
So the next engine begins one of the interrupted groups, and another one when the siblings of the first have their
first tokens. Which group it is beginning it says to the process that watches it, which repeats that in the report of
the engine's death. All other assignments begin at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from rljob_core.ports import Engine, Request
from rljob_core.trajectory import group_of
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.running import Assignment

_EVERY_SECONDS = 0.05


class CarefulStart:
    """Which assignments one engine instance begins now.

    Args:
        engine: generates them.
        alive: takes the word of what is being begun. If nobody reads it, everything begins at once.
    """

    def __init__(self, engine: Engine, alive: AliveWriter) -> None:
        self._engine = engine
        self._alive = alive
        # Of each request that is being begun, how many tokens show that it has been.
        self._awaited_tokens: dict[str, int] = {}
        self._group_begun = asyncio.Event()

    def admit(self, work: Sequence[Assignment]) -> list[Assignment]:
        """Those of these assignments that are to begin now."""
        if not self._alive.is_read:
            return list(work)
        group = "" if self._awaited_tokens else next((group_of(w.trajectory) for w in work if w.survivor), "")
        return [w for w in work if not w.survivor or group_of(w.trajectory) == group]

    def begin(self, work: Sequence[Assignment], requests: Sequence[Request]) -> None:
        """Note that the engine is about to get what `admit` has returned.

        Args:
            work: the assignments.
            requests: the request of each.
        """
        careful = [(w, r) for w, r in zip(work, requests, strict=True) if w.survivor]
        if not self._alive.is_read or not careful:
            return
        self._awaited_tokens = {request.id: request.inherited_tokens + 1 for _, request in careful}
        self._alive.begin(group_of(careful[0][0].trajectory))
        self._group_begun.set()

    async def wait_until_begun(self, running: Container[str]) -> None:
        """Wait until a group is being begun, and then until each of its requests has a token or runs no more.

        Args:
            running: names of the requests that the engine has.
        """
        await self._group_begun.wait()
        while self._awaited_tokens:
            begun = {progress.id for progress in await self._engine.progress(self._awaited_tokens)}
            self._awaited_tokens = {
                r: n for r, n in self._awaited_tokens.items() if r in running and r not in begun
            }
            if self._awaited_tokens:
                await asyncio.sleep(_EVERY_SECONDS)
        self._group_begun.clear()
        self._alive.begin("")
