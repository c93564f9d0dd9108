"""The engines that the checks of the engine contract run on, all of one kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from rljob_contract.check import require, without_time_limit
from rljob_core.ports import Engine


class EngineSubject:
    """Engines of one kind. Starting one may take a minute, so checks share those that they leave idle.

    Args:
        create: an engine that is not started yet, each time another one.
        weights: the initial model's weights as a trainer publishes them, in any order.
        longest: tokens of a response that still runs when a check does something, and that the check then waits for.
        endless: tokens of one that the check stops; the model's context holds them.
        vocabulary: number of token ids that the model has; by default, as many as a token can be.
    """

    def __init__(
        self,
        create: Callable[[], Engine],
        weights: Callable[[], Iterable[tuple[str, Any]]],
        *,
        longest: int = 3000,
        endless: int = 3000,
        vocabulary: int = 1 << 31,
    ) -> None:
        self.weights = weights
        self.longest = longest
        self.endless = endless
        self.vocabulary = vocabulary
        self._create = create
        self._idle = list[Engine]()

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """An idle engine; if the check leaves it idle, the next check gets it.

        Raises:
            ContractBroken: a new one already has a version, or after a check load() says that it is busy.
        """
        engine = self._idle.pop() if self._idle else await self._started()
        try:
            yield engine
            load = engine.load()
            require(
                load.running == load.waiting == 0,
                f"all responses have ended or were cancelled, but load() says {load.running} running and "
                f"{load.waiting} waiting",
            )
        except BaseException:
            await engine.close()
            raise
        self._idle.append(engine)

    @asynccontextmanager
    async def engine_to_close(self) -> AsyncIterator[Engine]:
        """An idle engine that no other check gets afterwards."""
        engine = self._idle.pop() if self._idle else await self._started()
        try:
            yield engine
        finally:
            await engine.close()

    async def close(self) -> None:
        """End what is left."""
        while self._idle:
            await self._idle.pop().close()

    async def _started(self) -> Engine:
        engine = self._create()
        try:
            with without_time_limit():
                await engine.start()
            require(engine.version == -1, f"a new engine's version is {engine.version}, not -1")
            require(engine.slots >= 1, f"slots is {engine.slots}, not 1 at least")
        except BaseException:
            await engine.close()
            raise
        return engine
