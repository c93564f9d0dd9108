"""The turns of an engine in episodes: it is given all that an episode has so far, and responds behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from rljob_core.ports import Completed, Engine, EngineEvent, Stopped
from rljob_core.trajectory import Segment, Source
from rljob_core.words import error_in_words
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.requests import EngineRequests, submit
from rljob_runtime.roles.rollout.running import Assignment, Running, request_of, span_of


class TurnEnded(Exception):
    """A turn ended without a response."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(str(stopped))
        self.stopped = stopped


class EngineTurns:
    """Has one engine make the responses of episodes, the first one of an assignment's own prompt excepted.

    Args:
        engine: makes them.
        assignments: of the engine instance.
        requests: as the job samples.
    """

    def __init__(self, engine: Engine, assignments: Assignments, requests: EngineRequests) -> None:
        self._engine = engine
        self._assignments = assignments
        self._requests = requests
        self._turns = dict[str, asyncio.Future[Completed]]()

    def took(self, event: EngineEvent, running: Running) -> bool:
        """Take the end of a turn that was asked for here, which `running` was; False if it is none."""
        turn = self._turns.pop(event.id, None)
        if turn is None:
            return False
        if isinstance(event, Completed):
            self._assignments.prefilled(running)
        if turn.done():  # its episode has been cancelled, and has not run since
            return True
        if isinstance(event, Completed):
            turn.set_result(event)
        else:
            turn.set_exception(TurnEnded(event))
        return True

    async def response(self, work: Assignment, segments: Sequence[Segment], turn: int) -> Completed:
        """Have the engine make the next response of an episode.

        Args:
            work: the episode's assignment.
            segments: all that the model reads, its prompt first.
            turn: number of the response; 1 of the first.

        Raises:
            TurnEnded: it does not.
            GenerationFailed: the engine has ended.
        """
        name = f"{request_of(work)}/{turn}"
        tokens = np.concatenate([segment.tokens for segment in segments])
        made = [segment for segment in segments if segment.source is Source.MODEL]
        running = Running(
            work,
            tokens,
            earlier=len(tokens) - len(segments[0].tokens),
            oldest=span_of(made[-1]).max if made else 0,
            made=sum(len(segment.tokens) for segment in made),
        )
        response: asyncio.Future[Completed] = asyncio.get_running_loop().create_future()
        self._turns[name] = response
        self._assignments.running[name] = running
        try:
            for refusal in submit(self._engine, [self._requests.later(name, running)]).values():
                raise TurnEnded(Stopped(name, "EngineRefused", failure=True, detail=error_in_words(refusal)))
            return await response
        finally:
            self._turns.pop(name, None)
            if self._assignments.running.pop(name, None) is not None:
                self._engine.cancel([name])
