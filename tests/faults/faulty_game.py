"""A game of two turns that ends its process, stops it or raises for some prompts, by a word of them."""

from __future__ import annotations

import asyncio
import os
import time

from rljob_runtime.environments import EpisodeStart, ModelTurn, TurnObservation


class FaultyGame:
    """Answers the first response and ends after the second."""

    async def open(self, start: EpisodeStart) -> FaultyGame:
        """Open it."""
        self.word, self.turns = start.item["question"].split()[1], 0
        return self

    async def react(self, turn: ModelTurn) -> TurnObservation | None:
        """Do what the prompt says."""
        self.turns += 1
        await asyncio.sleep(0.1)
        match self.word:
            case "crash":
                os._exit(7)
            case "hang":
                time.sleep(3600)  # noqa: ASYNC251  it is to stop its event loop
            case "raise":
                raise RuntimeError("no game")
        return None if self.turns == 2 else TurnObservation(text=" and")

    async def score(self, *, truncated: bool) -> float:
        """How many turns there were."""
        return float(self.turns) - truncated
