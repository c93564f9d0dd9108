"""The rollout role: one engine, fed from its own queue; trajectories and heartbeats out, weights in between tokens.

Every process is an engine *instance* of its own (`<pod>.<random>`), so that what was assigned to a dead process is
never delivered to its successor. An assignment is therefore acknowledged as soon as it is taken: the instance's
lease at the coordinator, not redelivery, covers its loss.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tenacity import retry, retry_if_exception_type, wait_exponential

from rljob_core.config import JobConfig
from rljob_core.errors import StoreFull, WeightsRejected
from rljob_core.messages import (
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    ENGINE_WORK,
    VERSION_ANNOUNCED,
    Cancel,
    EngineGone,
    EngineSignal,
    Generate,
    GenerationEnded,
    VersionAnnounced,
)
from rljob_core.ports import Channel, Completed, Engine, MessageStore, Request, Stopped, WeightStore
from rljob_core.spec import Inflight
from rljob_core.trajectory import Segment, Source, Trajectory, VersionSpan
from rljob_runtime.coordinator import heartbeat, publish_event
from rljob_runtime.tokenizer import Tokenizer
from rljob_runtime.trajectory_store import TrajectoryStore

log = logging.getLogger(__name__)

PUTS_IN_FLIGHT = 16
#: Assignments that an instance remembers, so that one that is sent again is not generated again.
TAKEN = 100_000


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
    return f"{work.trajectory}@{work.attempt}"


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
    ) -> None:
        self.instance = f"{pod}.{secrets.token_hex(4)}"
        self._config = config
        self._store = store
        self._weights = weights
        self._engine = engine
        self._tokenizer = tokenizer
        self._pool = pool
        self._trajectories = TrajectoryStore(store)
        self._inflight = config.spec.pipeline.inflight
        self._running: dict[str, Running] = {}  # by request: trajectory and attempt
        self._taken = Remembered(TAKEN)
        self._held: list[Generate] = []  # below their minVersion here
        self._announced = asyncio.Event()
        self._newest: VersionAnnounced | None = None
        self._changed = asyncio.Event()  # something that the next heartbeat should say at once
        self._moved = asyncio.Event()  # an assignment came or ended
        self._tokens = 0
        self._draining = False

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Load the newest version, report ready, generate until told to stop, hand back what is unfinished."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch_versions())]
            await self._engine.start()
            await self._announced.wait()  # nothing to serve before the coordinator has announced a version
            await self._swap()
            queue_ready = asyncio.Event()
            tasks += [
                group.create_task(self._swap_forever()),
                group.create_task(self._take_work(queue_ready)),
                group.create_task(self._publish()),
            ]
            await queue_ready.wait()
            tasks.append(group.create_task(heartbeat(self._beat, self._changed)))
            ready()
            log.info("engine %s serves version %d", self.instance, self._engine.version)
            await stop.wait()
            for task in tasks:
                task.cancel()
        await self._hand_back()

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
                for item in batch.items:
                    if isinstance(item, Cancel):
                        self._cancel(item)
                    elif self._taken.add(_request(item)):
                        self._held.append(item)
                self._start_held()
                self._moved.set()

    def _cancel(self, cancel: Cancel) -> None:
        named = set(cancel.trajectories)
        self._held = [w for w in self._held if named and w.trajectory not in named]
        running = [r for r, item in self._running.items() if not named or item.work.trajectory in named]
        for request in running:
            del self._running[request]
        self._engine.cancel(running)

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
                )
            )
        self._engine.submit(requests)

    # ------------------------------------------------------------------------------------------ results out

    async def _publish(self) -> None:
        window = asyncio.Semaphore(PUTS_IN_FLIGHT)
        async with asyncio.TaskGroup() as puts:
            while True:
                trajectories: list[Trajectory] = []
                for event in await self._engine.events():
                    running = self._running.pop(event.id, None)
                    if running is None:
                        continue
                    if isinstance(event, Completed):
                        trajectories.append(self._trajectory(running, event))
                    else:
                        await self._give_up(running.work, event)
                if trajectories:
                    # The next events do not wait for this acknowledgement, but a full store holds them back.
                    await window.acquire()
                    puts.create_task(self._put(trajectories, window))
                self._moved.set()
                if not self._running:
                    self._changed.set()

    async def _put(self, trajectories: Sequence[Trajectory], window: asyncio.Semaphore) -> None:
        full = retry(retry=retry_if_exception_type(StoreFull), wait=wait_exponential(0.05, max=2.0))
        await full(self._trajectories.put)(trajectories)
        window.release()

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

    async def _hand_back(self) -> None:
        """Tell the coordinator what it must have generated elsewhere (until migration carries tokens along)."""
        self._draining = True
        await self._engine.close()
        await publish_event(self._store, EngineGone(self.instance))
        await self._store.delete_signal(ENGINE_SIGNALS + self.instance)

    # ------------------------------------------------------------------------------------------ weights

    async def _watch_versions(self) -> None:
        async for messages in self._store.read(Channel.VERSIONS):
            self._newest = VERSION_ANNOUNCED.validate_json(messages[-1].data)
            self._announced.set()

    async def _swap_forever(self) -> None:
        while True:
            await self._announced.wait()
            # Keep: under the old weights for as long as there is admissible work, then all at once.
            while self._inflight == Inflight.KEEP and self._running and not self._held:
                self._moved.clear()
                await self._moved.wait()
            await self._swap()
            self._changed.set()

    async def _swap(self) -> None:
        newest = self._newest
        self._announced.clear()
        if newest is None or newest.version <= self._engine.version:
            return
        try:
            tensors = None if newest.key is None else await asyncio.to_thread(self._verified, newest.key)
            await self._engine.swap(newest.version, tensors, self._inflight)
        except WeightsRejected as error:
            # Stay on the verified old version; a newer announcement, or this one again, is tried in turn. Meanwhile
            # what waits for these weights goes to others, and nothing new comes.
            log.warning("WeightsRejected: version %d: %s", newest.version, error)
            self._draining = True
            self._changed.set()
            held, self._held = self._held, []
            for work in held:
                await self._give_up(work, Stopped(_request(work), "WeightsRejected", failure=False))
            await asyncio.sleep(1.0)
            self._announced.set()
            return
        self._draining = False
        self._start_held()

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
            version=self._engine.version,
            slots=self._engine.slots,
            running=load.running,
            waiting=load.waiting + len(self._held),
            tokens=load.tokens,
            seconds=asyncio.get_running_loop().time(),
            draining=self._draining,
        )
        await self._store.put_signal(ENGINE_SIGNALS + self.instance, ENGINE_SIGNAL.dump_json(signal))
