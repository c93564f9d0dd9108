"""What clients see of three servers that replicate a job's streams: elections, minorities, and servers that are behind.

A stream without a leader answers no request. Whether a request that was sent meanwhile takes effect is open until the
next leader is elected: it has the request in its log, or has never heard of it. Messages are read from any server, so
readers go on without a leader; those at a server that is behind see nothing new until it has caught up. Neither ever
makes a message look deleted: what a server lacks, the store asks the leader for, as
tests/faults/test_replicated_streams.py shows.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from rljob_core.errors import Fenced, StoreFull, StoreUnavailable

SERVERS = 3
Effect = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class ServerFaults:
    """How often something happens to the servers of a simulated job.

    Attributes:
        elections: the leader is lost, and another one is elected.
        minorities: two of the servers are away.
        laggards: one server does not hear of what the others store.
    """

    elections: int = 0
    minorities: int = 0
    laggards: int = 0


def any_server_faults(chance: random.Random) -> ServerFaults:
    """Draw what happens; nothing in two of five jobs."""
    return ServerFaults(
        elections=chance.choice([0, 0, 0, 1, 3]),
        minorities=chance.choice([0, 0, 0, 0, 0, 1]),
        laggards=chance.choice([0, 0, 0, 1]),
    )


class Replicas:
    """The servers' state, which all of a job's connections share.

    Args:
        faults: whether there will be elections.
        chance: the random number generator.
        happened: counts what happens.
    """

    def __init__(
        self,
        faults: ServerFaults = ServerFaults(),
        chance: random.Random | None = None,
        happened: Counter[str] | None = None,
    ) -> None:
        self.unsteady = faults.elections + faults.minorities > 0
        """Whether requests may be repeated, so that each needs a message id."""
        self._chance = random.Random(0) if chance is None else chance
        self._happened = Counter[str]() if happened is None else happened
        self._lost_at = self._led_at = float("-inf")
        self._current_at = [float("-inf")] * SERVERS
        self._open: list[Effect] = []

    # ------------------------------------------------------------------------------------ what happens

    def elect(self) -> None:
        """The leader is lost. The next one is elected after 4 to 10 s, and the lost server may be back much later."""
        self._happened["election"] += 1
        self.lose_leader(self._chance.uniform(4.0, 10.0))
        self.fall_behind()

    def lose_majority(self) -> None:
        """Two servers are away, in half of the cases for longer than their clients' patience."""
        self._happened["minority"] += 1
        self.lose_leader(self._chance.uniform(*self._chance.choice([(5.0, 30.0), (60.0, 120.0)])))

    def fall_behind(self) -> None:
        """One server stands still: its readers see nothing new."""
        self._happened["server behind"] += 1
        server = self._chance.randrange(SERVERS)
        self._current_at[server] = _now() + self._chance.uniform(2.0, 40.0)

    def lose_leader(self, seconds: float) -> None:
        """Have no leader for a number of seconds."""
        if self.has_leader:
            self._lost_at = _now()
        self._led_at = max(self._led_at, _now() + seconds)

    # ------------------------------------------------------------------------------------ what clients see

    @property
    def has_leader(self) -> bool:
        """Whether requests are answered now."""
        return _now() >= self._led_at

    def server(self) -> int:
        """The server that a new connection reaches."""
        return self._chance.randrange(SERVERS)

    def seconds_behind(self, server: int) -> float:
        """For how long a server shows nothing new."""
        return max(self._current_at[server] - _now(), 0.0)

    async def ask(self, effect: Effect) -> bool:
        """Send a request; whether the leader executes it now. Else its outcome is open."""
        if self.has_leader:
            await self._begin_term()
            return True
        fate = self._chance.random()
        if fate < 0.3 and _now() < self._lost_at + 1.0:
            self._happened["stored without an answer"] += 1
            await _tried(effect)
        elif fate < 0.6:
            self._open.append(effect)
        return False

    async def _begin_term(self) -> None:
        """Execute what the leader found in its log when it was elected, before anything else."""
        found, self._open = self._open, []
        for effect in found:
            self._happened["stored by the next leader"] += 1
            await _tried(effect)


async def _tried(effect: Effect) -> None:
    with suppress(Fenced, StoreFull, StoreUnavailable):  # whoever sent it hears of no refusal, either
        await effect()


def _now() -> float:
    return asyncio.get_running_loop().time()
