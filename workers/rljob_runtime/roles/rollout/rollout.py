"""One engine instance at work: assignments in, trajectories and heartbeats out, new weights between tokens.

    work queue → Assignments → engine → TrajectoryPublisher → trajectory stream
    versions   → AnnouncedVersion → WeightUpdates → engine
                 ProgressPublisher → progress stream, from which another engine can continue

Every process is an engine instance of its own; see `assignments` for what that means for work that is lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice

from rljob_core.config import JobConfig
from rljob_core.errors import RLJobError, StoreFull
from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS, LONGEST, EngineGone, EngineSignal
from rljob_core.ports import Channel, Engine, MessageStore, WeightStore
from rljob_core.spec import PipelineSpec
from rljob_runtime.environments.sources import EpisodeSource, episode_source
from rljob_runtime.messaging.announce import heartbeat, publish_event
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.careful_start import CarefulStart
from rljob_runtime.roles.rollout.engine_metrics import EngineMetrics
from rljob_runtime.roles.rollout.episodes import Episodes
from rljob_runtime.roles.rollout.hang_watch import HangWatch, PausesFile
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.running import Running, requests_of
from rljob_runtime.roles.rollout.trajectory_publisher import TrajectoryPublisher
from rljob_runtime.roles.rollout.versions import AnnouncedVersion
from rljob_runtime.roles.rollout.weight_updates import WeightUpdates
from rljob_runtime.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

_COUNT_SECONDS = 0.25
"""Between two words of how many tokens there are."""
_OUTBOX_SECONDS = 5.0
"""Between two looks at the outbox: many engines ask the same server."""


class Rollout:
    """One engine instance; `run` returns when `stop` is set and all unfinished work is returned."""

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        weights: WeightStore,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        vocabulary: int,
        pod: str,
        pool: str,
        nonce: str = "",
        started: float | None = None,
        alive: AliveWriter | None = None,
        pauses: PausesFile | None = None,
        changes: AsyncIterator[PipelineSpec] | None = None,
        recorder: Recorder | None = None,
        environments: EpisodeSource | None = None,
    ) -> None:
        """
        Args:
            config: of the job.
            store: the job's streams, open.
            weights: the job's weight store.
            engine: not started.
            tokenizer: of the model.
            vocabulary: number of token ids that the model has.
            pod: name of the pod, or of the process under `rljob run`.
            pool: name of the pool in `spec.rollout.pools`.
            nonce: second part of the instance's name; random if it is empty.
            started: seconds since 1970, now if not given: of two instances of a pod, the one that started later lives.
            alive: takes the word that this process is alive; that of the environment if not given.
            pauses: what is known of the pauses of the pod's engines; None if the engine's do not say how long later
                ones may be.
            changes: new values of `spec.pipeline` while the job runs; an update of the weights ends as it began.
            recorder: takes the metrics.
            environments: has the job's episodes played; if not given, by pods or a child process.
        """
        self.instance = f"{pod}.{nonce or secrets.token_hex(4)}"
        self._started = time.time() if started is None else started
        self._store = store
        self._engine = engine
        self._pool = pool
        self._alive = AliveWriter() if alive is None else alive
        self._stopping = False
        self._metrics = EngineMetrics(recorder)
        self._status_changed = asyncio.Event()
        max_tokens = config.spec.rollout.sampling.max_tokens
        site = self._site = config.spec.rollout.pool_sites.get(pool, "")
        trajectories = TrajectoryStore(store, max_tokens=max_tokens)
        self._announced = AnnouncedVersion(store)
        self._outbox = OutboxWatch(store, site=site)
        progress_store = ProgressStore(store, max_tokens=max_tokens)
        environment = config.spec.rollout.environment
        self._progress = ProgressPublisher(
            progress_store,
            engine,
            # Nobody continues a part of an episode: its environment has seen more of it.
            every=config.spec.rollout.progress_tokens if environment is None else 0,
            instance=self.instance,
            max_tokens=max_tokens,
            vocabulary=vocabulary,
        )
        self._assignments = Assignments(
            config,
            store,
            engine,
            tokenizer,
            announced=self._announced,
            progress=self._progress,
            progress_store=progress_store,
            trajectories=trajectories,
            careful=CarefulStart(engine, self._alive),
            instance=self.instance,
            site=site,
        )
        self._episodes: Episodes | None = None
        if environment is not None:
            self._episodes = Episodes(
                config,
                environment,
                environments or episode_source(config),
                engine=engine,
                tokenizer=tokenizer,
                assignments=self._assignments,
                vocabulary=vocabulary,
                instance=self.instance,
                metrics=self._metrics,
            )
            self._assignments.play_first = self._episodes.begin_first
        self._trajectories = TrajectoryPublisher(
            trajectories,
            engine,
            self._assignments,
            self._progress,
            status_changed=self._status_changed,
            instance=self.instance,
            site=site,
            metrics=self._metrics,
            episodes=self._episodes,
        )
        self._weights = WeightUpdates(
            weights,
            engine,
            announced=self._announced,
            assignments=self._assignments,
            progress=self._progress,
            inflight=config.spec.pipeline.inflight,
            swap_time=config.spec.rollout.weight_sync,
            changes=changes,
            status_changed=self._status_changed,
            waits_for_copies=bool(site),
            metrics=self._metrics,
            episodes=self._episodes,
        )
        self._hangs = HangWatch(
            engine,
            self._alive,
            running=self._assignments.running,
            longest_answered=self._assignments.longest_answered,
            hang_seconds=config.spec.rollout.hang_seconds,
            pauses=pauses,
            swapping=lambda: self._weights.swapping,
        )

        self._token_counts = TokenCounts(engine, self._alive, self._assignments.running)

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Load the newest version, report ready, generate until `stop` is set, then return what is unfinished.

        Args:
            stop: set to drain and end.
            ready: called once the engine has weights and its work queue exists.

        Raises:
            GenerationFailed: the engine failed.
            SpecError: the job's environment is not what the spec needs.
            StoreUnavailable: the message store did not answer for too long.
        """
        if self._episodes is None:
            await self._run(stop, ready)
            return
        try:
            if await self._episodes.start(stop):
                await self._run(stop, ready)
        finally:
            await self._episodes.close()

    async def _run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._announced.follow())]
            await self._engine.start()
            if not await self._weights.load_first(stop):
                tasks[0].cancel()
                await self._engine.close()
                return
            queue_ready = asyncio.Event()
            tasks += [
                group.create_task(self._weights.keep_newest()),
                group.create_task(self._assignments.receive(queue_ready)),
                group.create_task(self._weights.follow_changes()),
                group.create_task(self._weights.costs.measure_recomputing()),
                group.create_task(self._progress.publish_forever()),
                group.create_task(self._outbox.follow()),
            ]
            if self._alive.is_read:
                tasks.append(group.create_task(self._hangs.say_forever()))
                tasks.append(group.create_task(self._token_counts.say_forever()))
                tasks.append(group.create_task(self._assignments.begin_in_turn()))
            results = group.create_task(self._trajectories.publish())
            await queue_ready.wait()
            heartbeats = group.create_task(heartbeat(self._send_heartbeat, self._status_changed))
            ready()
            log.info("engine %s serves version %d", self.instance, self._engine.version)
            await stop.wait()
            self._stopping = True
            self._status_changed.set()
            for task in tasks:
                task.cancel()
            await self._drain(results)
            await self._trajectories.end()
            heartbeats.cancel()
        await self._send_heartbeat()
        # The signal stays until the coordinator has handled this event: without the signal, it would take the
        # instance for lost.
        await publish_event(self._store, EngineGone(self.instance))

    async def _drain(self, results: asyncio.Task[None]) -> None:
        """Stop generating; store every completed response, and the progress of all others."""
        self._trajectories.closing = True
        if self._episodes is not None:
            self._episodes.cancel()
        await self._engine.close()
        await asyncio.gather(self._progress.publish(), results)

    async def _send_heartbeat(self) -> None:
        load, assignments = self._engine.load(), self._assignments
        signal = EngineSignal(
            engine=self.instance,
            pool=self._pool,
            epoch=self._announced.epoch,
            version=self._engine.version,
            held=len(assignments),
            slots=self._engine.slots,
            running=load.running,
            waiting=load.waiting + len(assignments.waiting),
            tokens=load.tokens,
            started=self._started,
            draining=self._stopping or self._weights.draining,
            stuck=self._weights.stuck,
            stuck_detail=self._weights.stuck_detail,
            profile=load.profile,
            context=load.context,
            kv_tokens=load.kv_tokens,
            longest=tuple(self._progress.longest(LONGEST)),
            site=self._site,
            outbox_bytes=self._outbox.bytes,
            outbox_limit=self._outbox.limit,
            swaps=tuple(self._weights.swaps),
            announced=max(self._announced.version, 0),
            in_environment=len(assignments.episodes.keys() - requests_of(assignments.running.values())),
        )
        self._metrics.heartbeat(
            signal,
            generating=bool(assignments.running),
            storing=len(assignments.storing),
            awaiting=bool(assignments.too_new),
        )
        try:
            await self._store.put_signal(ENGINE_SIGNALS + self.instance, ENGINE_SIGNAL.dump_json(signal))
        except StoreFull as error:
            log.warning("%s: a heartbeat is left out, until the coordinator has made room", error)


class OutboxWatch:
    """Reads the size of the outbox of a site's trajectories again and again, for the engine's heartbeats.

    The coordinator sends less work to a site whose outbox fills, as its link is slower than its engines or is cut.

    Args:
        store: of the site's server, open.
        site: where this engine is; at the hub (""), nothing is read.

    Attributes:
        bytes, limit: what is stored, and may be stored; 0 for no limit, and where nothing could be read.
    """

    def __init__(self, store: MessageStore, *, site: str) -> None:
        self._store, self._site = store, site
        self.bytes = self.limit = 0

    async def follow(self) -> None:
        """Read it until cancelled. An engine works on without: a server that does not answer says so elsewhere."""
        while self._site:
            try:
                self.bytes, self.limit = await self._store.filled(Channel.TRAJECTORIES)
            except RLJobError as error:
                # The coordinator takes this for no answer: what it was before would hold the site back.
                self.bytes = self.limit = 0
                log.debug("the size of the outbox is not known: %s", error)
            await asyncio.sleep(_OUTBOX_SECONDS)


class TokenCounts:
    """Says how many tokens each response has, to the process that repeats it in the report of the engine's death.

    An engine that dies cannot say it any more. So this is said beforehand, often and in few words: when a response
    begins and ends, and how many decode steps the engine has made, each of which makes one token of every running
    response.

    Args:
        engine: generates them.
        alive: takes the word of it.
        running: what the engine has to generate, by request, in the order in which it was submitted.
    """

    def __init__(self, engine: Engine, alive: AliveWriter, running: Mapping[str, Running]) -> None:
        self._engine = engine
        self._alive = alive
        self._running = running
        self._said: dict[str, str] = {}
        self._steps, self._tokens, self._batch = 0.0, 0, 0

    async def say_forever(self) -> None:
        """Say it until cancelled."""
        while True:
            self.say()
            await asyncio.sleep(_COUNT_SECONDS)

    def say(self) -> None:
        """Say what has changed since the last call."""
        load = self._engine.load()
        # Responses begin in the order in which they were submitted.
        begun = dict(islice(self._running.items(), max(0, len(self._running) - load.waiting)))
        self._steps += max(0, load.tokens - self._tokens) / max(1, (load.running + self._batch) / 2)
        if load.tokens != self._tokens:
            self._alive.steps(int(self._steps))
        self._tokens, self._batch = load.tokens, load.running
        for request in self._said.keys() - begun.keys():
            self._alive.end(self._said.pop(request))
        for request, running in begun.items():
            if request not in self._said:
                work = running.work
                self._alive.make(
                    work.trajectory, running.made if work.inherited is None else work.inherited.tokens
                )
                self._said[request] = work.trajectory
