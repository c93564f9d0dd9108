"""Has answers scored by a scoring server that may fail, lie and hang, since it runs code that nobody has reviewed.

Answers that a lost server had in hand are sent again to the next one, each alone: if that one is lost, too, it was that
answer's doing, and the answer fails. So what a reward function does to the server costs its own answer and no other.
A server is lost if it closes the connection, sends what it must not, or sends no outcome for too long. Limits on single
calls are enforced where the calls are made (`pool`); the limit here is for a server that no longer enforces them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from dataclasses import dataclass, replace

from pydantic import ValidationError

from rljob_core.config import JobConfig
from rljob_core.errors import ResourceMissing, RewardFailed
from rljob_core.failures import Failure, Reason
from rljob_core.words import error_in_words
from rljob_runtime.process.frames import ServerConnection, closed, frame, pickled, read_frame
from rljob_runtime.process.server_place import ServerPlace
from rljob_runtime.rewards.job_items import JobItems
from rljob_runtime.rewards.messages import (
    LARGEST_REPLY,
    LARGEST_REQUEST,
    SCORING_REPLY,
    ScoringJob,
    ScoringOutcome,
    ScoringReply,
)
from rljob_runtime.rewards.places import scoring_place
from rljob_runtime.rewards.server_start import ServerStart

log = logging.getLogger(__name__)

#: Seconds beyond the limits of an answer's functions without any outcome: the pool may be replacing its processes.
_SILENCE = 120.0
#: Answers that are sent before any of them has come back.
_MAX_SENT = 4096


class _ServerLost(Exception):
    """The server cannot be believed or reached any more; `reason` is the one of an answer that did it."""

    def __init__(self, message: str, reason: Reason = Reason.REWARD_CRASHED) -> None:
        super().__init__(message)
        self.reason = reason


def _raised(detail: str) -> ScoringOutcome:
    return ScoringOutcome(failure=Failure(Reason.REWARD_RAISED, detail))


@dataclass(slots=True, eq=False)
class _PendingScore:
    request: bytes
    outcome: asyncio.Future[ScoringOutcome]
    alone: bool = False


class Scorer:
    """Scores the answers of one job.

    Args:
        config: the job's.
        workers: number of scoring processes; by default one per CPU, four at most.
        place: where the scoring server runs; by default as this process's environment says.
    """

    def __init__(
        self, config: JobConfig, *, workers: int | None = None, place: ServerPlace | None = None
    ) -> None:
        self._config = config
        self._workers = workers
        self._place = place or scoring_place(config)
        self._functions = config.spec.reward.called
        self._numbers = itertools.count()
        self._quarantined = deque[tuple[int, _PendingScore]]()
        self._waiting = deque[tuple[int, _PendingScore]]()
        self._sent = dict[int, _PendingScore]()
        self._wake = asyncio.Event()
        self._silence = asyncio.timeout(None)
        self._talk: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def start(self) -> None:
        """Start scoring.

        Raises:
            SpecError: data or functions are not what the spec needs, or end what loads them.
            RewardFailed: no scoring server starts.
            ResourceMissing: there is no scoring server.
        """
        if not self._functions:
            return
        self._items = await asyncio.to_thread(JobItems, self._config, workers=self._workers)
        self._servers = ServerStart(self._place, self._items.setup)
        self._talk = asyncio.create_task(self._keep_talking(await self._servers.connect()))
        await asyncio.sleep(0)  # a task that is cancelled before it begins would leave the connection open

    async def score(self, job: ScoringJob) -> ScoringOutcome:
        """The outcome of one answer; errors of the functions are outcomes too.

        Raises:
            RewardFailed: no server stays alive.
            ResourceMissing: the server's container is gone.
        """
        if not self._functions:
            return ScoringOutcome()
        reward = self._config.spec.reward
        outcome = await self._outcome(job)
        timed_out = outcome.failure is not None and outcome.failure.reason is Reason.REWARD_TIMEOUT
        if reward.timeout_score is None or not timed_out:
            return outcome
        parts = dict.fromkeys(self._functions, reward.timeout_score)
        return ScoringOutcome(reward.total(parts), parts)

    async def _outcome(self, job: ScoringJob) -> ScoringOutcome:
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        try:
            item = self._items.item(job.prompt, held_out=job.held_out)
            request = pickled((number, replace(job, item=item)))
        except Exception as error:  # the data's own code may raise anything
            return _raised(f"item {job.prompt}: {error_in_words(error)}")
        if len(request) > LARGEST_REQUEST:
            return _raised(
                f"item {job.prompt} and its answer take {len(request)} bytes; at most "
                f"{LARGEST_REQUEST} can be scored"
            )
        answer = _PendingScore(frame(request), asyncio.get_running_loop().create_future())
        self._waiting.append((number, answer))
        self._wake.set()
        return await answer.outcome

    async def close(self) -> None:
        """End the connection, and a server that this process has started."""
        try:
            if self._talk is not None:
                self._talk.cancel()
                await asyncio.gather(self._talk, return_exceptions=True)
        finally:
            await self._place.close()

    async def _keep_talking(self, connection: ServerConnection) -> None:
        """Have answers scored over one connection after the other, until cancelled or no server stays alive."""
        try:
            while True:
                reader, writer = connection
                sender = asyncio.create_task(self._send(writer))
                try:
                    await self._receive(reader)
                except _ServerLost as error:
                    log.warning("the scoring server is lost with %d answers: %s", len(self._sent), error)
                    self._quarantine(error)
                finally:
                    sender.cancel()
                    await asyncio.gather(sender, return_exceptions=True)
                    await closed(connection)
                connection = await self._servers.connect()
        except (RewardFailed, ResourceMissing) as error:
            self._failure = error
            for _, answer in [*self._sent.items(), *self._quarantined, *self._waiting]:
                if not answer.outcome.done():
                    answer.outcome.set_exception(error)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the receiver hears of it, too
            while True:
                self._wake.clear()
                if chosen := self._next():
                    idle = not self._sent
                    self._sent.update(chosen)
                    if idle:
                        self._expect_progress()
                    writer.writelines([answer.request for _, answer in chosen])
                    await writer.drain()
                await self._wake.wait()

    def _next(self) -> list[tuple[int, _PendingScore]]:
        """The next answers to send: a quarantined one alone, or what waits."""
        if self._quarantined:
            return [] if self._sent else [self._quarantined.popleft()]
        if any(answer.alone for answer in self._sent.values()):
            return []
        number = min(len(self._waiting), _MAX_SENT - len(self._sent))
        return [self._waiting.popleft() for _ in range(number)]

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Take outcomes as they come.

        Raises:
            _ServerLost: see the module.
        """
        try:
            async with asyncio.timeout(None) as self._silence:
                while True:
                    reply = SCORING_REPLY.validate_json(await read_frame(reader, LARGEST_REPLY))
                    self._settle(reply)
                    self._wake.set()
                    self._expect_progress()
        except TimeoutError as error:
            message = f"the scoring server sent no outcome for {self._longest_silence:g} s"
            raise _ServerLost(message, Reason.REWARD_TIMEOUT) from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise _ServerLost("the scoring server ended") from error
        except ValidationError as error:
            raise _ServerLost(
                f"the scoring server sent no outcome, but: {error.errors()[0]['msg']}"
            ) from error
        except ValueError as error:
            raise _ServerLost(f"the scoring server sent {error}") from error

    @property
    def _longest_silence(self) -> float:
        calls = len(self._functions) * self._config.spec.reward.timeout_seconds
        return calls + self._servers.at_least(_SILENCE)

    def _expect_progress(self) -> None:
        """Wait for the next outcome only so long, if any answer is with the server."""
        now = asyncio.get_running_loop().time()
        self._silence.reschedule(now + self._longest_silence if self._sent else None)

    def _settle(self, reply: ScoringReply) -> None:
        answer = self._sent.get(reply.number)
        if answer is None:
            raise ValueError("an outcome of an answer that it does not have")
        if reply.reason is not None:
            outcome = ScoringOutcome(failure=Failure(reply.reason, reply.detail))
        elif len(reply.scores) != len(self._functions):
            raise ValueError(f"{len(reply.scores)} scores of {len(self._functions)} functions")
        else:
            parts = dict(zip(self._functions, reply.scores, strict=True))
            outcome = ScoringOutcome(self._config.spec.reward.total(parts), parts)
        del self._sent[reply.number]
        if not answer.outcome.done():  # its caller may have given up
            answer.outcome.set_result(outcome)

    def _quarantine(self, lost: _ServerLost) -> None:
        """Send again what a lost server had, one by one; an answer that was alone with it twice has failed."""
        for number, answer in self._sent.items():
            if not answer.alone:
                answer.alone = True
                self._quarantined.append((number, answer))
            elif not answer.outcome.done():
                answer.outcome.set_result(ScoringOutcome(failure=Failure(lost.reason, str(lost))))
        self._sent.clear()
