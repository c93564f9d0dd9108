"""The rollout role: one engine, fed from its own queue; trajectories and heartbeats out, weights in between tokens.

Every process is an engine *instance* of its own (`<pod>.<random>`), so that what was assigned to a dead process is
never delivered to its successor. An assignment is therefore acknowledged as soon as it is taken: the instance's
lease at the coordinator, not redelivery, covers its loss, and what it has published of its progress outlives it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from tenacity import retry, retry_if_exception_type, wait_exponential

from rljob_core.config import JobConfig
from rljob_core.errors import GenerationFailed, StoreFull, StoreUnavailable, WeightsRejected
from rljob_core.messages import (
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    ENGINE_WORK,
    VERSION_ANNOUNCED,
    Cancel,
    EngineGone,
    EngineSignal,
    EngineWorkBatch,
    Generate,
    GenerationEnded,
    VersionAnnounced,
)
from rljob_core.ports import Channel, Completed, Engine, MessageStore, Request, Stopped, WeightStore
from rljob_core.spec import Inflight, PipelineSpec
from rljob_core.trajectory import Segment, Source, Trajectory, VersionSpan
from rljob_runtime.messaging.progress import PartialTrajectory, ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.roles.coordinator import heartbeat, publish_event
from rljob_runtime.roles.progress_keeper import ProgressKeeper

log = logging.getLogger(__name__)

PUTS_IN_FLIGHT = 16
#: Assignments that an instance remembers, so that one that is sent again is not generated again.
TAKEN = 100_000
#: Until weights that could not be had are tried again; longer each time while their store does not answer.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0

Stored = TypeVar("Stored")


class Remembered:
    """The newest `limit` keys."""

    def __init__(self, limit: int) -> None:
        self._keys: dict[str, None] = {}
        self._limit = limit

    def add(self, key: str) -> bool:
        """Whether it is a new one."""
        if key in self._keys:
            return False
        self._keys[key] = None
        if len(self._keys) > self._limit:
            del self._keys[next(iter(self._keys))]
        return True


def _request(work: Generate) -> str:
    return _request_id(work.trajectory, work.attempt)


def _request_id(trajectory: str, attempt: int) -> str:
    return f"{trajectory}@{attempt}"


@dataclass(frozen=True, slots=True)
class Running:
    """An assignment that the engine has, and its prompt's tokens (int32 [p])."""

    work: Generate
    prompt: np.ndarray


class Rollout:
    """One engine instance; `run` returns when `stop` is set and everything was handed back."""

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        weights: WeightStore,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        pod: str,
        pool: str,
        nonce: str = "",
        started: float | None = None,
        changes: AsyncIterator[PipelineSpec] | None = None,
    ) -> None:
        """
        Args:
            nonce: makes the instance's name; random if not given.
            started: seconds since 1970, if it is not now: the later of two instances of a pod is the one that lives.
            changes: of `spec.pipeline` while the job runs; a swap that is under way ends as it began.
        """
        self.instance = f"{pod}.{nonce or secrets.token_hex(4)}"
        self._started = time.time() if started is None else started
        self._config = config
        self._store = store
        self._weights = weights
        self._engine = engine
        self._tokenizer = tokenizer
        self._pool = pool
        self._trajectories = TrajectoryStore(store)
        self._progress_store = ProgressStore(store)
        self._progress = ProgressKeeper(
            self._progress_store,
            engine,
            every=config.spec.rollout.progress_tokens,
            instance=self.instance,
        )
        self._stored = 0  # sequence of the newest payload
        self._inflight = config.spec.pipeline.inflight
        self._changes = changes
        self._running: dict[str, Running] = {}  # by request: trajectory and attempt
        self._taken = Remembered(TAKEN)
        self._held: list[Generate] = []  # below their minVersion here
        self._storing: set[str] = set()  # requests whose payloads are on their way
        self._announced = asyncio.Event()
        self._newest: VersionAnnounced | None = None
        self._served: VersionAnnounced | None = None
        self._changed = asyncio.Event()  # something that the next heartbeat should say at once
        self._moved = asyncio.Event()  # an assignment came or ended
        self._tokens = 0
        self._draining = False
        self._closing = False  # the engine's events end
        self._stuck = ""  # why the newest weights cannot be had now
        self._retry = RETRY_SECONDS

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Load the newest version, report ready, generate until told to stop, hand over what is unfinished."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch_versions())]
            await self._engine.start()
            if not await self._has_weights(stop):
                tasks[0].cancel()
                await self._engine.close()
                return
            queue_ready = asyncio.Event()
            tasks += [
                group.create_task(self._swap_forever()),
                group.create_task(self._take_work(queue_ready)),
                group.create_task(self._read_changes()),
                group.create_task(self._progress.publish_forever()),
            ]
            results = group.create_task(self._publish())
            await queue_ready.wait()
            beating = group.create_task(heartbeat(self._beat, self._changed))
            ready()
            log.info("engine %s serves version %d", self.instance, self._engine.version)
            await stop.wait()
            self._draining = True
            self._changed.set()
            for task in tasks:
                task.cancel()
            await self._hand_over(results)
            beating.cancel()
        await self._beat()
        # Its signal stays until the coordinator has heard this: without one, it would be taken for lost.
        await publish_event(self._store, EngineGone(self.instance, self._stored))

    async def _has_weights(self, stop: asyncio.Event) -> bool:
        """Wait for the first weights; nothing is served before. False: told to stop, with nothing to hand over."""

        async def swapped() -> None:
            while self._engine.version < 0:
                await self._announced.wait()
                await self._swap()

        waits = {asyncio.create_task(swapped()), asyncio.create_task(stop.wait())}
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
        return self._engine.version >= 0

    # ------------------------------------------------------------------------------------------ work in

    async def _take_work(self, ready: asyncio.Event) -> None:
        queue = await self._store.queue(
            Channel.WORK, f"engine.{self.instance}", name=f"engine-{self.instance.replace('.', '-')}"
        )
        ready.set()
        while True:
            for delivery in await queue.fetch(messages=64, max_bytes=4 << 20, timeout=5.0):
                batch = ENGINE_WORK.validate_json(delivery.message.data)
                await delivery.ack()
                made = await self._fetch(batch)
                for item in batch.items:
                    if isinstance(item, Cancel):
                        self._cancel(item)
                    elif self._taken.add(_request(item)):
                        await self._hold(item, made.get(_request(item)))
                    elif not self._has(item):
                        await self._store_all(
                            partial(
                                self._trajectories.put_absence,
                                item.trajectory,
                                item.attempt,
                                engine=self.instance,
                            )
                        )
                self._start_held()
                self._moved.set()

    def _has(self, work: Generate) -> bool:
        request = _request(work)
        return work in self._held or request in self._running or request in self._storing

    async def _fetch(self, batch: EngineWorkBatch) -> dict[str, PartialTrajectory]:
        """What assignments go on from, by request, as far as it is there and may be used."""
        # A coordinator that was replaced may not know which weights count.
        if self._newest is not None and batch.epoch < self._newest.epoch:
            return {}
        going_on = [(w, w.inherited) for w in batch.items if isinstance(w, Generate) and w.inherited]
        found = await asyncio.gather(*(self._progress_store.get(w.trajectory, i) for w, i in going_on))
        longest = self._config.spec.rollout.sampling.max_tokens
        return {
            _request(work): made
            for (work, inherited), made in zip(going_on, found, strict=True)
            if made is not None and inherited.tokens < longest
        }

    async def _hold(self, work: Generate, made: PartialTrajectory | None) -> None:
        if work.inherited is not None and made is None:  # it is given back, and begun anew
            await self._give_up(work, Stopped(_request(work), "ProgressLost", failure=False))
            return
        self._progress.follow(_request(work), work, made)
        self._held.append(work)

    def _cancel(self, cancel: Cancel) -> None:
        named = set(map(_request_id, cancel.trajectories, cancel.attempts))
        for request in sorted(named):
            self._taken.add(request)  # should it come yet
        self._held = [w for w in self._held if _request(w) not in named]
        running = [request for request in self._running if request in named]
        for request in running:
            del self._running[request]
        self._engine.cancel(running)
        self._progress.leave(named)  # others may go on from what is stored of them

    def _start_held(self) -> None:
        """Submit what the weights in use admit; the rest waits for a swap."""
        admitted = [w for w in self._held if w.min_version <= self._engine.version]
        if not admitted:
            return
        self._held = [w for w in self._held if w.min_version > self._engine.version]
        sampling = self._config.spec.rollout.sampling
        requests = []
        for work in admitted:
            prompt = np.asarray(self._tokenizer.encode(work.text), dtype=np.int32)
            self._running[_request(work)] = Running(work, prompt)
            requests.append(
                Request(
                    id=_request(work),
                    tokens=prompt,
                    temperature=0.0 if work.sample == "greedy" else sampling.temperature,
                    top_p=1.0 if work.sample == "greedy" else sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    stop_tokens=self._tokenizer.stop_tokens,
                    stop=tuple(sampling.stop),
                    seed=work.seed,
                    inherited=self._progress.inherited(_request(work)),
                )
            )
        self._engine.submit(requests)

    # ------------------------------------------------------------------------------------------ results out

    async def _publish(self) -> None:
        window = asyncio.Semaphore(PUTS_IN_FLIGHT)
        async with asyncio.TaskGroup() as puts:
            while True:
                trajectories: list[Trajectory] = []
                try:
                    events = await self._engine.events()
                except GenerationFailed:
                    if not self._closing:
                        raise
                    return
                for event in events:
                    running = self._running.pop(event.id, None)
                    if running is None:
                        continue
                    if isinstance(event, Completed):
                        self._storing.add(event.id)
                        trajectories.append(self._trajectory(running, event))
                    else:
                        await self._progress.forget([event.id])
                        await self._give_up(running.work, event)
                if trajectories:
                    # The next events do not wait for this acknowledgement, but a full store holds them back.
                    await window.acquire()
                    puts.create_task(self._put(trajectories, window))
                self._moved.set()
                if not self._running:
                    self._changed.set()

    async def _put(self, trajectories: Sequence[Trajectory], window: asyncio.Semaphore) -> None:
        stored = await self._store_all(partial(self._trajectories.put, trajectories))
        self._stored = max(self._stored, stored)
        requests = [_request_id(t.id, t.attempt) for t in trajectories]
        self._storing.difference_update(requests)
        window.release()
        await self._progress.forget(requests)

    @staticmethod
    async def _store_all(put: Callable[[], Awaitable[Stored]]) -> Stored:
        """Wait while the store is full: nothing is dropped."""
        full = retry(retry=retry_if_exception_type(StoreFull), wait=wait_exponential(0.05, max=2.0))
        return await full(put)()

    def _trajectory(self, running: Running, done: Completed) -> Trajectory:
        self._tokens += len(done.tokens)
        prompt, work = running.prompt, running.work
        size = len(prompt)
        given = Segment(
            Source.PROMPT,
            prompt,
            np.zeros(size, np.uint8),
            np.zeros(size, np.float32),
            np.full(size, -1, np.int32),
        )
        made = Segment(
            Source.MODEL,
            np.asarray(done.tokens, np.int32),
            np.ones(len(done.tokens), np.uint8),
            np.asarray(done.logprobs, np.float32),
            np.asarray(done.versions, np.int32),
        )
        span = VersionSpan(int(made.versions.min()), int(made.versions.max()))
        return Trajectory(
            id=work.trajectory,
            attempt=work.attempt,
            prompt=work.prompt,
            segments=(given, made),
            span=span,
            finish=done.finish,
            engine=self.instance,
            sample=work.sample,
        )

    async def _give_up(self, work: Generate, stopped: Stopped) -> None:
        reason, _, detail = stopped.reason.partition(": ")
        ended = GenerationEnded(self.instance, work.trajectory, work.attempt, reason, stopped.failure, detail)
        await publish_event(self._store, ended)

    async def _give_back(self, held: Sequence[Generate], reason: str) -> None:
        """Leave to others what was not begun."""
        self._held = [work for work in self._held if work not in held]
        self._progress.leave(map(_request, held))
        for work in held:
            await self._give_up(work, Stopped(_request(work), reason, failure=False))

    async def _hand_over(self, results: asyncio.Task[None]) -> None:
        """Stop generating; store every response that has ended, and of the others all that there is of them."""
        self._closing = True
        await self._engine.close()
        await asyncio.gather(self._progress.publish(), results)

    # ------------------------------------------------------------------------------------------ weights

    async def _watch_versions(self) -> None:
        async for messages in self._store.read(Channel.VERSIONS):
            for message in messages:
                announced = VERSION_ANNOUNCED.validate_json(message.data)
                # Not of a coordinator that was replaced, and does not know it yet.
                if self._newest is None or announced.epoch >= self._newest.epoch:
                    self._newest = announced
            self._announced.set()

    async def _swap_forever(self) -> None:
        while True:
            await self._announced.wait()
            # Keep: under the old weights for as long as there is admissible work, then all at once.
            while self._inflight == Inflight.KEEP and self._running and not self._held and not self._revoked:
                self._moved.clear()
                await self._moved.wait()
            await self._swap()
            self._changed.set()

    @property
    def _revoked(self) -> bool:
        """Whether the version in use does not count any more, because its end of the ledger was lost, or by the user's
        word: what was begun with it is begun anew.
        """
        return self._newest is not None and self._newest.version <= self._engine.version

    async def _read_changes(self) -> None:
        if self._changes is None:
            return
        async for pipeline in self._changes:
            if pipeline.inflight != self._inflight:
                log.info("spec.pipeline.inflight is now %s, from the next version on", pipeline.inflight)
                self._inflight = pipeline.inflight
                self._moved.set()  # whoever kept the old weights looks again

    async def _swap(self) -> None:
        newest, served = self._newest, self._served
        self._announced.clear()
        if newest is None:
            return
        if served is not None and (served.version, served.manifest) == (newest.version, newest.manifest):
            self._served = newest
            # Another one that could not be had does not count any more.
            self._draining, self._stuck = False, ""
            return
        try:
            tensors = None if newest.key is None else await asyncio.to_thread(self._verified, newest.key)
            self._progress.lineage.expect(newest.version, newest.manifest)
            revoked = self._revoked
            inflight = Inflight.RESTART if revoked else self._inflight
            await self._engine.swap(newest.version, tensors, inflight)
        except (WeightsRejected, StoreUnavailable) as error:
            await self._stay(newest.version, error)
            return
        self._progress.lineage.use(newest.version, newest.manifest)
        self._draining, self._stuck, self._retry = False, "", RETRY_SECONDS
        self._served = newest
        if revoked:
            await self._give_back([w for w in self._held if w.min_version > newest.version], "Restarted")
        self._start_held()

    async def _stay(self, version: int, error: WeightsRejected | StoreUnavailable) -> None:
        """Keep the verified old version; a newer announcement, or this one again, is tried in turn.

        Meanwhile what waits for these weights goes to others. Where the store does not answer, what the old ones admit
        still comes; where they do not verify, nothing new.
        """
        rejected = isinstance(error, WeightsRejected)
        reason = "WeightsRejected" if rejected else "WeightsUnavailable"
        log.warning("%s: version %d: %s", reason, version, error)
        self._stuck, self._draining = f"{reason}: {error}", rejected
        self._changed.set()
        await self._give_back(self._held, reason)
        await asyncio.sleep(self._retry)
        self._retry = RETRY_SECONDS if rejected else min(2 * self._retry, LONGEST_RETRY_SECONDS)
        self._announced.set()

    def _verified(self, key: str) -> list[tuple[str, Any]]:
        """All tensors of a version, every digest checked before the engine sees the first of them."""
        tensors: Iterator[tuple[str, Any]] = self._weights.read(self._weights.manifest(key))
        return list(itertools.chain(tensors))

    # ------------------------------------------------------------------------------------------ signals

    async def _beat(self) -> None:
        load = self._engine.load()
        signal = EngineSignal(
            engine=self.instance,
            pool=self._pool,
            epoch=self._newest.epoch if self._newest is not None else 0,
            version=self._engine.version,
            held=len(self._held) + len(self._running) + len(self._storing),
            slots=self._engine.slots,
            running=load.running,
            waiting=load.waiting + len(self._held),
            tokens=load.tokens,
            started=self._started,
            draining=self._draining,
            stuck=self._stuck,
            profile=load.profile,
        )
        await self._store.put_signal(ENGINE_SIGNALS + self.instance, ENGINE_SIGNAL.dump_json(signal))
