"""Plays the episodes of one engine instance: its engine makes the model's turns, an environment answers them.

    engine: first response → environment: open, react → engine: later response → react → … → score → trajectory

The coordinator knows of one assignment, from its first token to its payload, and of nothing in between: an episode's
lease, its reservation and its attempt are those of any trajectory. So whatever ends before the payload is stored, the
engine, the environment, the coordinator or the link, the coordinator has the attempt replaced as it always has, and
the next one plays the same game from its start. While the environment works, the engine has no request of the episode.

Tokens are appended, never rendered nor tokenized again. All turns come from one engine, whose version only grows while
an episode lasts: where weights are revoked, or under `inflight: Restart`, its episodes are given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from rljob_core.config import JobConfig
from rljob_core.errors import EnvironmentFailed
from rljob_core.ports import Completed, Engine, Stopped
from rljob_core.spec import EnvironmentSpec
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory
from rljob_runtime.environments.link import EpisodePlayer
from rljob_runtime.environments.messages import INVALID, TOO_LONG
from rljob_runtime.environments.sources import EpisodeSource
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.process.stopping import done_before
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.engine_metrics import EngineMetrics
from rljob_runtime.roles.rollout.engine_turns import EngineTurns, TurnEnded
from rljob_runtime.roles.rollout.episode_starts import EpisodeStarts
from rljob_runtime.roles.rollout.observations import ObservationReader
from rljob_runtime.roles.rollout.requests import EngineRequests
from rljob_runtime.roles.rollout.running import (
    Assignment,
    OpenEpisode,
    Running,
    generated,
    given,
    request_of,
    span_of,
)

log = logging.getLogger(__name__)

RESTARTED = "Restarted"
"""Why an episode is given back whose tokens are of weights that its engine has left."""


@dataclass(frozen=True, slots=True)
class _First:
    """What an episode begins with whose prompt is that of its assignment.

    Attributes:
        prompt: int32 [p].
        completed: the first response.
    """

    prompt: NDArray[np.int32]
    completed: Completed


Store = Callable[[Trajectory], Awaitable[None]]


class Episodes:
    """The episodes of one engine instance.

    Args:
        config: of the job.
        environment: `spec.rollout.environment`.
        client: has them played.
        engine: generates the turns.
        tokenizer: of the model.
        assignments: of the instance.
        vocabulary: number of token ids that the model has.
        instance: name of the engine instance.
        metrics: of the instance.

    Attributes:
        turns: the engine's.
    """

    def __init__(
        self,
        config: JobConfig,
        environment: EnvironmentSpec,
        client: EpisodeSource,
        *,
        engine: Engine,
        tokenizer: Tokenizer,
        assignments: Assignments,
        vocabulary: int,
        instance: str,
        metrics: EngineMetrics,
    ) -> None:
        self._config = config
        self._environment = environment
        self._client = client
        self._reader = ObservationReader(tokenizer, vocabulary=vocabulary)
        self._assignments = assignments
        self._requests = EngineRequests(config, tokenizer)
        self.turns = EngineTurns(engine, assignments, self._requests)
        self._instance = instance
        self._metrics = metrics
        self._tasks: asyncio.TaskGroup | None = None
        self._store: Store | None = None
        self._can_begin = asyncio.Event()
        self._restarted = dict[str, int | None]()
        self._starts = EpisodeStarts(config, max_turns=environment.max_turns)

    async def start(self, stop: asyncio.Event) -> bool:
        """Load the environment, and open the items of the prompts; False if `stop` was set before.

        Raises:
            SpecError: the environment or the data are not what the spec needs.
        """

        async def loaded() -> None:
            await self._client.start()
            await self._starts.open()

        return await done_before(stop, loaded())

    async def close(self) -> None:
        """End the environment."""
        self._starts.close()
        await self._client.close()

    def is_restarted(self, first: Completed) -> bool:
        """Whether a first response has tokens of weights that the engine has left; asked once for each."""
        if first.id not in self._restarted:
            return False
        since = self._restarted.pop(first.id)
        return since is None or int(first.versions.min()) < since

    def use(self, tasks: asyncio.TaskGroup, store: Store) -> None:
        """Play episodes from now on.

        Args:
            tasks: which each of them is one of.
            store: stores a trajectory.
        """
        self._tasks, self._store = tasks, store
        self._can_begin.set()

    def begin(self, running: Running, completed: Completed) -> None:
        """Play the rest of an episode whose first response the engine has made.

        Args:
            running: its assignment.
            completed: the response.
        """
        self._assignments.prefilled(running)
        self._begin(running.work, _First(running.prompt, completed))

    async def begin_first(self, admitted: Sequence[Assignment]) -> bool:
        """Play these episodes if their environment speaks first; False if it does not.

        Args:
            admitted: of the assignments that wait.
        """
        if not self._client.observes_first:
            return False
        if not admitted:  # as when the first weights are loaded, before any episode can be played
            return True
        await self._can_begin.wait()
        for work in admitted:
            if work in self._assignments.waiting:  # not cancelled meanwhile
                self._assignments.waiting.remove(work)
                self._begin(work, None)
        return True

    def _begin(self, work: Assignment, first: _First | None) -> None:
        assert self._tasks is not None  # noqa: S101  `use` was called
        task = self._tasks.create_task(self._play(work, first))
        self._assignments.episodes[request_of(work)] = OpenEpisode(work, task)

    def cancel(self) -> None:
        """End all episodes and report none of them: the engine is about to be closed."""
        for episode in self._assignments.episodes.values():
            episode.task.cancel()
        self._assignments.episodes.clear()

    async def restart(self, *, since: int | None) -> None:
        """Give back all episodes: the engine has left the weights that they were begun with.

        Args:
            since: version of the new weights: responses that were wholly generated with it or later ones count. None if
                versions were revoked: a number may then be of revoked weights.
        """
        running = self._assignments.running
        lasting = {request for request, known in self._restarted.items() if known is None}
        self._restarted = {name: None if name in lasting else since for name in running}
        given_back = dict(self._assignments.episodes)
        self._assignments.episodes.clear()
        for episode in given_back.values():
            episode.task.cancel()
        for request, episode in given_back.items():
            stopped = Stopped(request, RESTARTED, failure=False)
            await self._assignments.report_ended(episode.work, stopped)

    async def _play(self, work: Assignment, first: _First | None) -> None:
        assert self._store is not None  # noqa: S101  `use` was called
        request = request_of(work)
        ended: Trajectory | Stopped
        try:
            ended = await self._ended(work, first)
        except EnvironmentFailed as failed:
            log.warning("%s: %s", request, failed)
            ended = Stopped(request, failed.word, failure=failed.blamed, detail=failed.detail)
        except TurnEnded as turn:
            ended = turn.stopped
        if self._assignments.episodes.pop(request, None) is None:  # given back while this was about to end
            return
        self._metrics.ended(completed=isinstance(ended, Trajectory))
        if isinstance(ended, Stopped):
            await self._assignments.report_ended(work, ended)
        else:
            self._assignments.storing.add(request)
            await self._store(ended)
        self._assignments.changed.set()

    async def _ended(self, work: Assignment, first: _First | None) -> Trajectory:
        """The episode's trajectory.

        Raises:
            EnvironmentFailed: the environment has failed, or the episode lasts too long.
            TurnEnded: the engine has stopped a turn.
        """
        player: EpisodePlayer | None = None
        try:
            await self._client.available()  # no episode is to blame for a time in which nothing plays any
            async with asyncio.timeout(self._environment.episode_seconds) as limit:
                player = await self._client.open(await self._starts.start_of(work))
                return await self._turned(player, work, first)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the episode lasted longer than {self._environment.episode_seconds} s"
            raise EnvironmentFailed(TOO_LONG, message) from None
        finally:
            if player is not None:
                player.close()

    async def _turned(self, player: EpisodePlayer, work: Assignment, first: _First | None) -> Trajectory:
        """Take turns until the episode has ended, and have it scored."""
        prompt = None if first is None else given(Source.PROMPT, first.prompt)
        segments = await self._beginning(player, work) if prompt is None else [prompt]
        room = self._config.spec.rollout.sampling.max_tokens - sum(len(s.tokens) for s in segments[1:])
        turn, truncated, finish = 1, False, FinishReason.STOP
        completed = await self.turns.response(work, segments, turn) if first is None else first.completed
        while True:
            read = sum(len(segment.tokens) for segment in segments)
            segments.append(generated(completed))
            room -= len(completed.tokens)
            reaction = await player.react(await self._reader.turn_of(completed, read=read))
            if reaction is None:
                break
            if turn == self._environment.max_turns:
                truncated = True
                break
            last = int(completed.tokens[-1])
            observed = await self._reader.tokens_of(reaction, last=last, room=room)
            if observed is None:
                truncated, finish = True, FinishReason.LENGTH
                break
            if observed:
                segments.append(given(Source.ENVIRONMENT, observed))
            room -= len(observed)
            turn += 1
            completed = await self.turns.response(work, segments, turn)
        score = await player.score(truncated=truncated)
        return Trajectory(
            id=work.trajectory,
            attempt=work.attempt,
            prompt=work.prompt,
            segments=tuple(segments),
            span=reduce(or_, (span_of(s) for s in segments if s.source is Source.MODEL)),
            finish=finish,
            engine=self._instance,
            sample=work.sample,
            score=score,
        )

    async def _beginning(self, player: EpisodePlayer, work: Assignment) -> list[Segment]:
        """What the model reads first. It is planned for as long as the prompt: the rest counts as an observation.

        Raises:
            EnvironmentFailed: the model cannot read it.
        """
        if player.first is None:
            raise EnvironmentFailed(INVALID, "the environment speaks first, and has said nothing")
        planned = len(self._requests.prompt(work))
        room = planned + self._config.spec.rollout.sampling.max_tokens
        tokens = await self._reader.first_tokens_of(player.first, room=room)
        parts = [given(Source.PROMPT, tokens[:planned]), given(Source.ENVIRONMENT, tokens[planned:])]
        return [part for part in parts if len(part.tokens)]
