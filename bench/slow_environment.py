"""An environment that takes its time: the seconds of each reaction are log-normal, as those of tools and tests are."""

from __future__ import annotations

import asyncio
import random

from rljob_runtime.environments import EpisodeStart, ModelTurn, TurnObservation


class SlowEnvironment:
    """Opens episodes that end after the last turn, with a score drawn by their seed.

    Args:
        median: seconds of a reaction.
        sigma: standard deviation of their logarithm.
    """

    def __init__(self, *, median: float, sigma: float) -> None:
        self.median, self.sigma = median, sigma

    async def open(self, start: EpisodeStart) -> SlowEpisode:
        """Open an episode."""
        return SlowEpisode(self, random.Random(start.seed))


class SlowEpisode:
    """One episode."""

    def __init__(self, environment: SlowEnvironment, chance: random.Random) -> None:
        self._environment, self._chance = environment, chance

    async def react(self, turn: ModelTurn) -> TurnObservation:  # noqa: ARG002
        """Say something, after a while."""
        drawn = self._chance.lognormvariate(0.0, self._environment.sigma)
        await asyncio.sleep(self._environment.median * drawn)
        return TurnObservation(text="1+1=")

    async def score(self, *, truncated: bool) -> float:  # noqa: ARG002
        """A number."""
        return self._chance.random()
