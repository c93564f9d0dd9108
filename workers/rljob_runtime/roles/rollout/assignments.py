"""The assignments of one engine instance: received from its work queue, then waiting, running or being stored.

Every process is an engine instance of its own (`<pod>.<random>`), so work that was assigned to a dead process is
never delivered to its successor. The instance therefore acknowledges an assignment as soon as it has received it:
the coordinator notices the loss of an assignment by the instance's lease, not by redelivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rljob_core.config import JobConfig
from rljob_core.messages import (
    ENGINE_WORK,
    RELEASED,
    Cancel,
    EngineWorkBatch,
    Generate,
    GenerationEnded,
    Release,
    work_suffix,
)
from rljob_core.ports import Channel, Engine, MessageStore, Stopped
from rljob_core.words import error_in_words
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.messaging.progress import PartialTrajectory, ProgressStore
from rljob_runtime.messaging.recent_keys import RecentKeys
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.messaging.waiting_publisher import retry_while_full
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.roles.rollout.careful_start import CarefulStart
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.requests import EngineRequests, submit
from rljob_runtime.roles.rollout.running import OpenEpisode, Running, request_id, request_of, requests_of
from rljob_runtime.roles.rollout.versions import AnnouncedVersion

log = logging.getLogger(__name__)

#: Assignments that an instance remembers, so that it does not generate one again that is sent again.
REMEMBERED = 100_000


class Assignments:
    """What the coordinator has assigned to one engine instance.

    Args:
        config: of the job.
        store: the job's streams, open.
        engine: generates the responses.
        tokenizer: encodes the prompts.
        announced: the newest announced version, whose epoch tells a replaced coordinator's work.
        progress: publishes how far the assignments have come.
        progress_store: over `store`, the same as that of `progress`.
        trajectories: over `store`.
        careful: says which assignments begin one after the other.
        instance: name of the engine instance.
        site: where it is; empty for the hub.

    Attributes:
        waiting: assignments that the engine has not got: they wait for newer weights, or for their turn.
        running: assignments that the engine generates, by request.
        storing: requests whose trajectories are being stored.
        episodes: those that are played behind their first responses, by request; of these, those whose turn it is to
            generate are in `running`, too.
        changed: set whenever an assignment arrives or ends.
        play_first: begins the episodes of assignments in which the environment speaks before the model; False if it
            does not.
    """

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        announced: AnnouncedVersion,
        progress: ProgressPublisher,
        progress_store: ProgressStore,
        trajectories: TrajectoryStore,
        careful: CarefulStart,
        instance: str,
        site: str = "",
    ) -> None:
        self._config = config
        self._store = store
        self._engine = engine
        self._requests = EngineRequests(config, tokenizer)
        self._announced = announced
        self._progress = progress
        self._progress_store = progress_store
        self._trajectories = trajectories
        self._careful = careful
        self._instance = instance
        self._site = site
        self._received = RecentKeys(REMEMBERED)
        self.waiting: list[Generate] = []
        self.running: dict[str, Running] = {}
        self.storing: set[str] = set()
        self.episodes: dict[str, OpenEpisode] = {}
        self.changed = asyncio.Event()
        self.play_first: Callable[[Sequence[Generate]], Awaitable[bool]] | None = None
        self._longest_answered = 0

    def __len__(self) -> int:
        generating = requests_of(self.running.values())
        return len(self.waiting) + len(generating | self.episodes.keys()) + len(self.storing)

    @property
    def too_new(self) -> list[Generate]:
        """Those that wait for newer weights than the engine has."""
        return [w for w in self.waiting if w.min_version > self._engine.version]

    async def receive(self, ready: asyncio.Event) -> None:
        """Receive work until cancelled.

        Args:
            ready: set once the work queue exists.
        """
        queue = await self._store.queue(
            Channel.WORK,
            work_suffix(self._instance, site=self._site),
            name=f"engine-{self._instance.replace('.', '-')}",
        )
        ready.set()
        while True:
            for delivery in await queue.fetch(messages=64, max_bytes=4 << 20, timeout=5.0):
                batch = ENGINE_WORK.validate_json(delivery.message.data)
                await delivery.ack()
                inherited = await self._inherited_progress(batch)
                for item in batch.items:
                    if isinstance(item, Cancel):
                        self._cancel(item)
                    elif isinstance(item, Release):
                        await self._release(item)
                    elif self._received.add(request_of(item)):
                        await self._accept(item, inherited.get(request_of(item)))
                    elif not self._has(item):
                        await retry_while_full(
                            partial(
                                self._trajectories.put_absence,
                                item.trajectory,
                                item.attempt,
                                engine=self._instance,
                            )
                        )
                await self.start_admitted()
                self.changed.set()

    def _has(self, work: Generate) -> bool:
        request = request_of(work)
        return (
            work in self.waiting
            or request in self.running
            or request in self.storing
            or request in self.episodes
        )

    async def _inherited_progress(self, batch: EngineWorkBatch) -> dict[str, PartialTrajectory]:
        """By request, the stored progress that assignments continue, where it is stored and may be continued."""
        # A coordinator that was replaced may not know which weights count.
        if batch.epoch < self._announced.epoch:
            return {}
        continued = [(w, w.inherited) for w in batch.items if isinstance(w, Generate) and w.inherited]
        found = await asyncio.gather(*(self._progress_store.get(w.trajectory, i) for w, i in continued))
        longest = self._config.spec.rollout.sampling.max_tokens
        return {
            request_of(work): partial_trajectory
            for (work, inherited), partial_trajectory in zip(continued, found, strict=True)
            if partial_trajectory is not None and inherited.tokens < longest
        }

    async def _accept(self, work: Generate, inherited: PartialTrajectory | None) -> None:
        if (
            work.inherited is not None and inherited is None
        ):  # the coordinator then has it generated from the start
            await self.report_ended(work, Stopped(request_of(work), "ProgressLost", failure=False))
            return
        self._progress.follow(request_of(work), work, inherited)
        self.waiting.append(work)

    def _cancel(self, cancel: Cancel) -> None:
        cancelled = set(map(request_id, cancel.trajectories, cancel.attempts))
        for request in sorted(cancelled):
            self._received.add(request)  # so that it is not generated if it arrives later
        self.waiting = [w for w in self.waiting if request_of(w) not in cancelled]
        running = [request for request in self.running if request in cancelled]
        for request in running:
            del self.running[request]
        self._engine.cancel(running)
        for request in cancelled & self.episodes.keys():
            self.episodes.pop(request).task.cancel()
        self._progress.unfollow(cancelled)  # another engine may continue from what is stored of them

    async def _release(self, release: Release) -> None:
        """Give back what runs of these, once its progress is stored; what cannot be stored is generated to its end."""
        named = set(map(request_id, release.trajectories, release.attempts))
        if release.unless_begun:
            await self.return_waiting([w for w in self.waiting if request_of(w) in named], RELEASED)
            free = await self._not_begun(named & self.running.keys())
        else:
            free = await self._progress.store(named & self.running.keys())
        for request in sorted(free):
            running = self.running.pop(request, None)
            if running is None:  # it has ended meanwhile
                continue
            self._engine.cancel([request])
            self._progress.unfollow([request])
            await self.report_ended(running.work, Stopped(request, RELEASED, failure=False))

    async def _not_begun(self, requests: set[str]) -> set[str]:
        """Those of these requests of which the engine has no token; none if it holds responses that have ended."""
        begun = {progress.id for progress in await self._engine.progress(dict.fromkeys(requests, 1))}
        load = self._engine.load()
        if len(self.running) > load.running + load.waiting:
            return set()  # some have ended and wait to be stored: they have no progress either
        return requests - begun

    async def start_admitted(self) -> None:
        """Submit the assignments that the engine's version admits and whose turn it is; the others wait.

        An assignment that the engine refuses with an exception is reported as a failed attempt; the engine continues
        with the others.

        Raises:
            GenerationFailed: the engine has ended.
        """
        admitted = [w for w in self.waiting if w.min_version <= self._engine.version]
        if self.play_first is not None and await self.play_first(admitted):
            self._progress.unfollow(
                map(request_of, admitted)
            )  # nothing of an episode is stored before its end
            return
        admitted = self._careful.admit(admitted)
        if not admitted:
            return
        requests = [
            self._requests.first(work, self._progress.inherited(request_of(work))) for work in admitted
        ]
        for work, request in zip(admitted, requests, strict=True):
            self.running[request.id] = Running(work, request.tokens)
        self.waiting = [w for w in self.waiting if request_of(w) not in self.running]
        self._careful.begin(admitted, requests)
        refused = [
            (self.running.pop(name).work, error) for name, error in submit(self._engine, requests).items()
        ]
        for work, refusal in refused:
            name = request_of(work)
            stopped = Stopped(name, "EngineRefused", failure=True, detail=error_in_words(refusal))
            log.warning("%s: %s", name, stopped, exc_info=refusal)
            await self._progress.delete([name])
            await self.report_ended(work, stopped)

    async def begin_in_turn(self) -> None:
        """Submit each assignment that waits for its turn when that has come, until cancelled."""
        while True:
            await self._careful.wait_until_begun(self.running)
            await self.start_admitted()

    def answered(self, request: str, running: Running) -> None:
        """Note that the engine has completed a response, which is to be stored."""
        self.storing.add(request)
        self.prefilled(running)

    def prefilled(self, running: Running) -> None:
        """Note that the engine has answered what it has prefilled."""
        self._longest_answered = max(self._longest_answered, running.prefill_tokens)

    def longest_answered(self) -> int:
        """Tokens of the longest prompt answered since this was called last, with what its response inherited."""
        longest, self._longest_answered = self._longest_answered, 0
        return longest

    async def report_ended(self, work: Generate, stopped: Stopped) -> None:
        """Report to the coordinator that an assignment ended without a trajectory.

        Args:
            work: the assignment.
            stopped: its end.
        """
        ended = GenerationEnded(
            self._instance, work.trajectory, work.attempt, stopped.reason, stopped.failure, stopped.detail
        )
        await publish_event(self._store, ended)

    async def return_waiting(self, work: Sequence[Generate], reason: str) -> None:
        """Return assignments that wait to the coordinator, which assigns them to other engines.

        Args:
            work: some of `waiting`.
            reason: a word for the coordinator.
        """
        self.waiting = [one for one in self.waiting if one not in work]
        self._progress.unfollow(map(request_of, work))
        for one in work:
            await self.report_ended(one, Stopped(request_of(one), reason, failure=False))
