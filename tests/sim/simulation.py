"""Simulates a whole job under virtual time: the real roles on a store with faults, killed and frozen at random times.

Coordinator, rollouts and trainer are the real classes, with the emulated engine and backend; the reward role is a loop
that scores at once. One seed determines the job's configuration and the time of every fault, so it gives one run.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import virtual_time
from any_lengths import AnyLengths
from episode_proof import FedEpisodes, Refuted, require
from episodes import GameFaults, Games, any_game_faults, simulated_client
from faulty_store import Faults, FaultyStore
from mislabelling import GarblingEngine, MislabellingStore
from poison import Poison, PoisonedEngine, any_poison, unsendable
from power import Disk
from proof import prove
from replicas import Replicas, ServerFaults, any_server_faults
from sites import SimulatedSite, SiteFaults, any_site
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from unlearnable import Unlearnable, UnlearningBackend, any_unlearnable
from world import job_config

from rljob_cli.audit import audit
from rljob_cli.audit.evidence import Evidence
from rljob_cli.audit.read import collect
from rljob_core.config import JobConfig
from rljob_core.errors import Fenced, JobFailed, ResourceMissing, StoreUnavailable
from rljob_core.failures import Failure
from rljob_core.messages import (
    ENGINE_WORK,
    REWARD_QUEUE,
    EngineDied,
    EngineWorkBatch,
    Release,
    RewardResult,
    RoleFailed,
    work_suffix,
)
from rljob_core.planner.spec_change import pipeline_set
from rljob_core.ports import Channel, TrainingSample, first_sequence
from rljob_core.records import JobFinished, PipelineSet, SpecInForce
from rljob_core.spec import ENVIRONMENT_SCORE, PipelineSpec, RLJobSpec, RolloutSpec
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_core.trajectory import Trajectory, group_id
from rljob_core.worker_protocol import EXIT_HUNG
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.messaging.ledger import RECORDS, read_batch
from rljob_runtime.messaging.reward_results import result_digest
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.rewards.messages import ScoringOutcome
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.roles.reward import ResultPublisher, rewarded
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.roles.rollout.hang_watch import PausesFile
from rljob_runtime.roles.trainer import Trainer
from rljob_runtime.roles.trainer.consumed_log import FolderConsumedLog
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.weights.store import StoredWeights

LIMIT_SECONDS = 4 * 3600.0
"""Virtual time within which every job must have ended."""
HANG_SECONDS = 60
"""Seconds without a new token after which any engine is ended; one whose pauses are known is ended sooner."""

NEW_TIMEOUT_SECONDS = 7.5
HEALTHY = (Fenced, StoreUnavailable, asyncio.CancelledError)
"""Exceptions with which a role may end and be started again."""


class Tokenizer:
    """A tokenizer whose tokens are bytes."""

    stop_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    encode_piece = encode

    def render_reply(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        last: int,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        return "".join(message["content"] for message in messages)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class Begins(AliveWriter):
    """Takes the word of what an engine begins and that it is alive, as the process does that watches an engine's.

    Attributes:
        name: what the engine is beginning.
        limit: seconds for which it may be silent; 0 for without end.
        silent: seconds since its last word.
    """

    is_read = True
    name = ""
    limit = 0
    silent = 0

    def begin(self, name: str) -> None:
        self.name = name

    def say(self, seconds: int) -> None:
        self.limit, self.silent = seconds, 0

    async def hung(self) -> None:
        """Return once it has been silent for too long."""
        while not 0 < self.limit < self.silent:
            await asyncio.sleep(1.0)
            self.silent += 1


@dataclass(frozen=True)
class Mishaps:
    """The numbers of faults in a simulated job, and the faults of its store.

    Attributes:
        deaths: how often a random role is killed at a random time.
        twins: how often a coordinator or trainer is replaced although it is alive and continues to run.
        freezes: how often a role is stopped for longer than every timeout, and then continues.
        drains: how often an engine is asked to stop and hands over its work.
        releases: how often an engine is asked to release everything that it generates.
        cuts: how often the server's machine dies and loses the ends of its streams.
        power_cuts: how often the machine dies that everything runs on, and the trainer's log loses its end, too.
        change: new pipeline settings that the user sets once; None for no change.
        poison: what harms each engine that generates it, cannot be sent to one, or cannot be scored; None for nothing.
        unlearnable: what no trainer can learn from; None for nothing.
        mislabelled: id of a group whose first attempts a rollout worker stores as of weights to come; "" for none.
        aged: id of a group in whose first attempts engines without poison say that later turns are older; "" for none.
        garbled: id of a group to whose first attempts engines without poison respond with NaN; "" for none.
        limited: whether the trajectory stream has its usual limit, so that prompts are measured; else it has none.
        faults: the probabilities of network faults.
        servers: what happens to the servers that replicate the streams.
        sites: where engines are besides those at the hub.
        correlation: that the predictor of lengths claims of its estimates, which may be anything.
        games: what goes wrong with the environment, if the job has one.
    """

    deaths: int = 0
    twins: int = 0
    freezes: int = 0
    drains: int = 0
    releases: int = 0
    cuts: int = 0
    power_cuts: int = 0
    change: PipelineSpec | None = None
    poison: Poison | None = None
    unlearnable: Unlearnable | None = None
    mislabelled: str = ""
    garbled: str = ""
    aged: str = ""
    limited: bool = False
    faults: Faults = field(default_factory=Faults)
    servers: ServerFaults = field(default_factory=ServerFaults)
    correlation: float = 0.0
    sites: tuple[SiteFaults, ...] = ()
    games: GameFaults = field(default_factory=GameFaults)


class Job:
    """One simulated job."""

    def __init__(
        self,
        chance: random.Random,
        config: JobConfig,
        mishaps: Mishaps,
        *,
        engines: int,
        folder: Path,
        server: MemoryServer | None = None,
        render: Callable[[int], str] = lambda prompt: f"prompt {prompt}",
    ):
        self.chance, self.config, self.mishaps = chance, config, mishaps
        self.folder = folder
        (folder / "model").mkdir()
        self.checkpoints = CheckpointStore(str(folder / "checkpoints"), model_path=folder / "model")
        limit = trajectory_stream_bytes(config.spec) if mishaps.limited else None
        self.server = MemoryServer(trajectory_bytes=limit) if server is None else server
        self.render = render
        self.stored = MemoryTransport()
        self.disk = Disk(folder / "trainer")
        self.store = MemoryStore(self.server, subject=config.subject)
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.lines: dict[str, FaultyStore] = {}
        self.zombies: list[asyncio.Task[Any]] = []
        self.engines = engines
        self.instances: Counter[str] = Counter()
        self.stop = asyncio.Event()
        self.drains: dict[str, asyncio.Event] = {}
        self.rollouts: dict[str, Rollout] = {}
        self.sent: list[asyncio.Task[int]] = []
        self.begins: dict[str, Begins] = {}
        """What each engine says to the process that watches it."""
        self.changed = asyncio.Event()
        self.done = asyncio.Event()
        self.failure: BaseException | None = None
        self.happened: Counter[str] = Counter()
        self.cut_after_end = False
        """Whether the ledger had the job's end at a cut, so that the trainer may have been asked to finish."""
        self.poisoning = random.Random(str(mishaps.poison))
        self.powering = random.Random(f"power {chance.getstate()}")
        self.replicas = Replicas(
            mishaps.servers, random.Random(f"servers {chance.getstate()}"), self.happened
        )
        self.reports: list[asyncio.Task[None]] = []
        """Reports of deaths that are on their way."""
        self.may_be_dead: set[str] = set()
        """Engines that were killed, asked to stop, or without a heartbeat for a while."""
        self.frozen: set[str] = set()
        """Of these, those that were without a heartbeat, and may have lived on."""
        self.sites = {
            faults.name: SimulatedSite(
                faults,
                self.server.job(config.subject),
                self.stored,
                subject=config.subject,
                chance=random.Random(f"site {faults} {chance.getstate()}"),
                happened=self.happened,
            )
            for faults in mishaps.sites
        }
        self.games = self._games()
        self.fed_episodes = None if self.games is None else FedEpisodes(config, self.games)
        away = [name for name, site in self.sites.items() for _ in range(site.faults.engines)]
        self.homes = {f"rollout-{engines + n}": name for n, name in enumerate(away)}
        """The sites of the roles that are not at the hub."""

    def _games(self) -> Games | None:
        environment = self.config.spec.rollout.environment
        if environment is None:
            return None
        return Games(
            self.mishaps.games,
            random.Random(f"games {self.chance.getstate()}"),
            self.happened,
            timeout_seconds=environment.timeout_seconds,
            episode_seconds=environment.episode_seconds,
            refute=self._refute,
        )

    def _refute(self, why: str) -> None:
        """End the job, for this reason."""
        self.failure = self.failure or Refuted(why)
        self.done.set()

    @property
    def calm(self) -> bool:
        """Whether the network and the servers never lose or delay heartbeats."""
        mishaps = self.mishaps
        servers = mishaps.servers != ServerFaults()
        return not (mishaps.faults.cut_off or mishaps.cuts or mishaps.power_cuts or servers)

    # ------------------------------------------------------------------------------------------ roles

    def site_of(self, role: str) -> SimulatedSite | None:
        return self.sites.get(self.homes.get(role, ""))

    def memory(self, role: str) -> MemoryStore:
        """The server that a role is connected to."""
        site = self.site_of(role)
        return MemoryStore(self.server, subject=self.config.subject) if site is None else site.store()

    def connect(self, role: str) -> FaultyStore:
        memory = self.memory(role)
        faults, chance = self.mishaps.faults, random.Random(self.chance.getrandbits(64))
        if self.mishaps.mislabelled and role.startswith("rollout-"):
            group = self.mishaps.mislabelled
            self.lines[role] = MislabellingStore(
                memory, faults, chance, self._replicas_of(role), group=group, happened=self.happened
            )
        else:
            self.lines[role] = FaultyStore(memory, faults, chance, self._replicas_of(role), sites=self.sites)
        return self.lines[role]

    def _replicas_of(self, role: str) -> Replicas:
        return self.replicas if role not in self.homes else Replicas()

    def weights(self, role: str = "") -> StoredWeights:
        site = self.site_of(role)
        stored = self.stored if site is None else site.weights
        return StoredWeights(stored, anchor_every=self.config.spec.anchor_every)

    def start(self, role: str) -> None:
        """Start a role's next process."""
        self.instances[role] += 1
        task = asyncio.create_task(
            self._process(role, self.instances[role]), name=f"{role}/{self.instances[role]}"
        )
        self.tasks[role] = task
        task.add_done_callback(lambda done: self._ended(role, done))

    async def _process(self, role: str, number: int) -> None:
        await asyncio.sleep(self.chance.uniform(0.2, 2.0))  # a process takes its time to start
        store = self.connect(role)
        kind, _, _ = role.partition("-")
        if kind == "coordinator":
            coordinator = Coordinator(
                self.config,
                store,
                self.weights(),
                PromptTexts(self._text),
                instance=f"c{number}",
                changes=self._specs(),
                lengths=partial(AnyLengths, self.mishaps.correlation),
            )
            await coordinator.run()
        elif kind == "rollout":
            await self._rollout(role, store, number)
        elif kind == "reward":
            await self._reward(store)
        else:
            await self._trainer(store, number)

    def _text(self, prompt: int, evaluation: bool) -> str:
        poison = self.mishaps.poison
        group = f"e{prompt}" if evaluation else group_id(prompt)
        if poison is not None and poison.kind == "unsendable" and poison.group == group:
            self.happened["unsendable"] += 1
            return unsendable(prompt)
        return self.render(prompt)

    async def _rollout(self, role: str, store: FaultyStore, number: int) -> None:
        pool = self.homes.get(role, "a")
        options = EmulatedEngineOptions.model_validate(self.config.engine_options(pool))
        engine = self._engine(options, role, number)
        begins = self.begins.setdefault(f"{role}.{number}", Begins())
        rollout = Rollout(
            self.config,
            store,
            self.weights(role),
            engine,
            Tokenizer(),
            vocabulary=1 << 31,
            pod=role,
            pool=pool,
            nonce=str(number),
            started=asyncio.get_running_loop().time(),
            alive=begins,
            pauses=PausesFile(),
            changes=self._changes(),
            environments=None if self.games is None else simulated_client(self.config, self.games),
        )
        stop = self.drains[role] = asyncio.Event()
        self.rollouts[role] = rollout
        watch = asyncio.create_task(self._end_if_it_hangs(role, number, begins))
        try:
            await rollout.run(stop)
        except* ResourceMissing:  # of its environment: the process ends
            self.happened["no environment"] += 1
            self._may_be_dead(role)
        finally:
            watch.cancel()
            await engine.close()

    async def _end_if_it_hangs(self, role: str, number: int, begins: Begins) -> None:
        await begins.hung()
        poison = self.mishaps.poison
        if poison is None or poison.kind != "hangs":
            self._refute(f"[hang] {role} was ended although it generates")
        self._poisoned(role, number, EXIT_HUNG, f"no new token for {begins.limit} s")

    def _engine(self, options: EmulatedEngineOptions, role: str, number: int) -> EmulatedEngine:
        poison = self.mishaps.poison
        if poison is None or poison.kind in {"unscored", "unsendable"}:
            return GarblingEngine(options, self.mishaps.garbled, self.mishaps.aged)
        return PoisonedEngine(
            options,
            poison,
            lambda trajectory: self._poisoned(role, number, 139, f"it died of {trajectory}"),
            self.happened,
        )

    async def _trainer(self, store: FaultyStore, attempt: int) -> None:
        backend = UnlearningBackend(self.mishaps.unlearnable, self.happened, self._watch)
        trainer = Trainer(
            self.config,
            store,
            self.weights(),
            self.checkpoints,
            backend,
            attempt=attempt,
            consumed_log=FolderConsumedLog(self.folder / "trainer", attempt=attempt),
        )
        try:
            await trainer.run(self.stop)
        except JobFailed as error:
            if self.mishaps.unlearnable is None and self.games is None:
                raise
            if not self._is_over():
                # As the process does; what comes after it is another attempt, which hears that the job is over.
                await publish_event(store, RoleFailed("trainer", error.failure, attempt))
                return
        self.done.set()

    def _watch(self, sample: TrainingSample) -> None:
        """Check what a trainer is given."""
        try:
            if self.fed_episodes is not None:
                self.fed_episodes.check(sample)
        except Refuted as error:
            self._refute(str(error))

    def _is_over(self) -> bool:
        """Whether the ledger has the job's end."""
        stream = self.server.job(self.config.subject).streams[Channel.LEDGER]
        batches = [read_batch(m) for m in stream.since(1) if m.suffix == RECORDS]
        return any(isinstance(record, JobFinished) for batch in batches for record in batch.records)

    async def _reward(self, store: FaultyStore) -> None:
        queue = await TrajectoryStore(store).queue(REWARD_QUEUE, ack_wait=10.0)
        publisher = ResultPublisher(store)
        while True:
            for delivery in await queue.fetch(messages=16, timeout=5.0):
                for trajectory, digest in zip(delivery.trajectories, delivery.digests, strict=True):
                    scored = RewardResult(trajectory.id, trajectory.attempt, digest, 0.0, {}, "")
                    scored = replace(scored, **self._score(trajectory))
                    await publisher.publish([replace(scored, digest=result_digest(scored))])
                await delivery.ack()

    def _score(self, trajectory: Trajectory) -> dict[str, Any]:
        poison = self.mishaps.poison
        if poison is None or poison.score is None or not poison.is_in(trajectory.id):
            if self.games is None:
                return {"reward": float(sum(trajectory.id.encode()) % 2)}
            scored = rewarded(ScoringOutcome(), trajectory, self.config.spec)
            return {"reward": scored.reward, "parts": scored.parts, "failure": scored.failure}
        self.happened["poisonous score"] += 1
        return {"failure": poison.score} if isinstance(poison.score, Failure) else {"reward": poison.score}

    async def _changes(self) -> AsyncIterator[PipelineSpec]:
        if not self.changed.is_set() and self.mishaps.change is not None:
            await self.changed.wait()
            yield self.mishaps.change
        await asyncio.Event().wait()

    async def _specs(self) -> AsyncIterator[RLJobSpec]:
        async for _ in self._changes():
            yield self.config.spec

    def _ended(self, role: str, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else _leaf(task.exception())
        if self.done.is_set() or self.stop.is_set():
            return
        if error is not None and not isinstance(error, HEALTHY):
            self.failure = error
            self.done.set()
        elif self.tasks.get(role) is task:
            self.happened[f"{role.partition('-')[0]} {type(error).__name__ if error else 'killed'}"] += 1
            self.start(role)

    # ------------------------------------------------------------------------------------------ mishaps

    async def _go_wrong(self) -> None:
        """Everything that is to go wrong, at moments spread over the first minutes."""
        kinds = {
            self._die: self.mishaps.deaths,
            self._twin: self.mishaps.twins,
            self._freeze: self.mishaps.freezes,
            self._drain: self.mishaps.drains,
            self._release: self.mishaps.releases,
            self._cut: self.mishaps.cuts,
            self._change: int(self.mishaps.change is not None),
            self._kill_server: self.mishaps.games.lost_servers,
            self.replicas.elect: self.mishaps.servers.elections,
            self.replicas.lose_majority: self.mishaps.servers.minorities,
            self.replicas.fall_behind: self.mishaps.servers.laggards,
        }
        plan = [what for what, times in kinds.items() for _ in range(times)]
        self.chance.shuffle(plan)
        for what in plan:
            await asyncio.sleep(self.chance.expovariate(1 / 4.0))
            what()

    async def _lose_power(self) -> None:
        """Power cuts, spread over the first minutes: most in a step whose log is not synced."""
        for _ in range(self.mishaps.power_cuts):
            await asyncio.sleep(self.powering.expovariate(1 / 8.0))
            patience = self.powering.choice([0, 200, 200])
            while patience and self.disk.is_synced():
                await asyncio.sleep(0.1)
                patience -= 1
            self._cut_power()

    def _die(self) -> None:
        role = self.chance.choice(sorted(self.tasks))
        self.happened[f"death {role.partition('-')[0]}"] += 1
        self._may_be_dead(role)
        self.tasks[role].cancel()

    def _poisoned(self, role: str, number: int, code: int, said: str) -> None:
        """An engine dies of what it generates, and what watched it may say so."""
        if self.instances[role] != number or self.done.is_set():
            return
        self.happened["death of a hang" if code == EXIT_HUNG else "death of poison"] += 1
        self._may_be_dead(role)
        self.tasks[role].cancel()
        if self.mishaps.poison is not None and self.poisoning.random() < self.mishaps.poison.reported:
            beginning = self.begins[f"{role}.{number}"].name
            died = EngineDied(f"{role}.{number}", code, said, beginning=beginning)
            self.reports.append(asyncio.create_task(self._report(role, died)))

    async def _report(self, role: str, died: EngineDied) -> None:
        await asyncio.sleep(self.poisoning.uniform(0.0, 1.0))
        await publish_event(self.memory(role), died)

    def _may_be_dead(self, role: str) -> None:
        self.may_be_dead.add(f"{role}.{self.instances[role]}")

    def _twin(self) -> None:
        role = self.chance.choice(["coordinator", "trainer"])
        self.happened[f"twin {role}"] += 1
        self.zombies.append(self.tasks.pop(role))
        self.start(role)

    def _freeze(self) -> None:
        if not self.lines:
            return  # nobody has come so far
        role = self.chance.choice(sorted(self.lines))
        self.happened[f"freeze {role.partition('-')[0]}"] += 1
        self._may_be_dead(role)
        self.frozen.add(f"{role}.{self.instances[role]}")
        self.lines[role].line.cut_off(self.chance.uniform(5.0, 50.0))

    def _drain(self) -> None:
        if running := sorted(role for role in self.drains if role in self.tasks):
            self.happened["drain rollout"] += 1
            role = self.chance.choice(running)
            self._may_be_dead(role)  # whether it is heard of that in time is chance
            self.drains[role].set()

    def _release(self) -> None:
        """As the coordinator asks for what would end sooner elsewhere; here that is chance."""
        if running := sorted(role for role in self.rollouts if role in self.tasks):
            role = self.chance.choice(running)
            rollout = self.rollouts[role]
            held = [(r.work.trajectory, r.work.attempt) for r in rollout._assignments.running.values()]
            if held:
                self.happened["release"] += 1
                work = EngineWorkBatch(0, (Release(*map(tuple, zip(*held, strict=True))),))
                suffix = work_suffix(rollout.instance, site=self.homes.get(role, ""))
                sending = self.store.publish(Channel.WORK, suffix, ENGINE_WORK.dump_json(work))
                self.sent.append(asyncio.create_task(sending))

    def _kill_server(self) -> None:
        if self.games is not None:
            self.games.kill_server()

    def _cut(self) -> None:
        """The machine of the server dies; of each stream some of the newest messages are lost."""
        self.happened["cut"] += 1
        job = self.server.job(self.config.subject)
        self.cut_after_end |= self._is_over()
        for channel in Channel:
            stream = job.streams[channel]
            lost = self.chance.choice([0, 0, 1, 2, 5, 20])
            left = max(stream.last - lost, first_sequence(channel) - 1)
            job.cut(channel, left, undone=self.chance.choice([0, 0, 3]))
        for store in self.lines.values():
            store.line.cut_off(self.chance.uniform(0.5, 5.0))

    def _cut_power(self) -> None:
        """All processes die, and streams and the trainer's log lose what was not synced."""
        self.happened["power cut"] += 1
        self._cut()
        for role in sorted(self.tasks):
            self._may_be_dead(role)
            self.tasks[role].cancel()
        for zombie in self.zombies:
            zombie.cancel()
        self.happened["bytes of the log lost"] += self.disk.cut_power(self.powering)
        # A newest status that was lost with it gives the next gang the number of one that died.
        self.instances["trainer"] -= self.powering.choice([0, 0, 1])

    def _change(self) -> None:
        self.happened["change"] += 1
        reward = self.config.spec.reward.model_copy(update={"timeout_seconds": NEW_TIMEOUT_SECONDS})
        spec = self.config.spec.model_copy(update={"pipeline": self.mishaps.change, "reward": reward})
        self.config = self.config.model_copy(update={"spec": spec})
        self.changed.set()

    # ------------------------------------------------------------------------------------------ the whole

    async def run(self) -> None:
        """From the start until the trainer has heard that the job is over.

        Raises:
            Exception: what ended a role that should not have ended.
        """
        for site in self.sites.values():
            site.start()
        engines = range(self.engines + len(self.homes))
        for role in ("coordinator", "reward", "trainer", *(f"rollout-{n}" for n in engines)):
            self.start(role)
        wrong = [asyncio.create_task(self._go_wrong(), name="mishaps")]
        if self.mishaps.power_cuts:
            wrong.append(asyncio.create_task(self._lose_power(), name="power cuts"))
        try:
            await self.done.wait()
        finally:
            self.stop.set()
            links = [task for site in self.sites.values() for task in site.tasks]
            everything = [*wrong, *self.tasks.values(), *self.zombies, *self.reports, *links]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
        for task in wrong:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if self.failure is not None:
            raise self.failure


def _leaf(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        others = [e for e in error.exceptions if not isinstance(_leaf(e), HEALTHY)]
        error = (others or list(error.exceptions))[0]
    return error


def any_pipeline(chance: random.Random) -> PipelineSpec:
    """Any mode, bound, window and way to take new weights."""
    aside = random.Random(repr(chance.getstate()))  # which changes no other draw
    bound = chance.choice([0, 0, 1, 2, 3])
    return PipelineSpec.model_validate(
        {
            "mode": "BoundedAsync" if bound else chance.choice(["Streaming", "Synchronous"]),
            "maxStaleness": bound,
            "inflight": chance.choice(["Update", "Keep", "Restart"]),
            "window": aside.choice([0, 0.25, 0.75, 2]),
        }
    )


def any_job(chance: random.Random) -> tuple[JobConfig, Mishaps, int]:
    """Draw a random job's configuration, its faults and its number of engines."""
    aside = random.Random(repr(chance.getstate()))
    steps = chance.randint(2, 4)
    data = {"promptsPerStep": chance.randint(1, 3), "groupSize": chance.randint(1, 3)}
    poison = any_poison(
        random.Random(repr(aside.getstate())),
        prompts=steps * data["promptsPerStep"],
        siblings=data["groupSize"],
    )
    evaluation: dict[str, Any] = (
        {"evaluation": {"samples": 3, "everySteps": 1}} if poison is not None and poison.is_held_out else {}
    )
    config = job_config(
        steps=steps,
        data=data,
        pipeline=any_pipeline(chance).model_dump(by_alias=True, mode="json"),
        algorithm={"dropUniformGroups": chance.random() < 0.3},
        trainer={
            "microBatchTokens": chance.choice([1, 40, 1000]),
            "checkpoint": {"everySteps": chance.randint(1, 3)},
        },
        rollout={
            "pools": [{"name": "a"}],
            "progressTokens": aside.choice([0, 4, 20]),
            "hangSeconds": HANG_SECONDS,
            "engine": {
                "name": "Emulated",
                "options": {
                    "slots": chance.randint(1, 4),
                    "stepSeconds": 0.05,
                    "lengths": {"median": 20.0, "min": 2, "max": 200, "seed": chance.randrange(1000)},
                },
            },
        },
        **evaluation,
    )
    rough = chance.random() < 0.5
    rate = chance.choice([0.01, 0.05]) if rough else 0.0
    faults = Faults(
        delay=chance.choice([0.0, 0.1, 0.3]),
        lost_answer=rate / 5,
        lost_ack=rate,
        lost_batch=rate,
        repeat=rate,
        disorder=rate,
        split=rate,
        cut_off=rate / 20,
        late_effect=rate,
    )
    rare = random.Random(repr(aside.getstate()))  # so that the other draws are what they are without it
    mishaps = Mishaps(
        deaths=chance.randint(0, 4),
        twins=chance.choice([0, 0, 1, 2]),
        freezes=chance.choice([0, 0, 1, 2]),
        drains=aside.choice([0, 0, 1, 3]),
        cuts=chance.choice([0, 0, 0, 1, 2]),
        change=any_pipeline(chance) if chance.random() < 0.6 else None,
        poison=poison,
        unlearnable=any_unlearnable(rare, prompts=steps * data["promptsPerStep"]),
        mislabelled=f"g{rare.randrange(3)}" if rare.random() < 0.1 else "",
        garbled=f"g{rare.randrange(3)}" if rare.random() < 0.1 else "",
        power_cuts=rare.choice([0, 0, 0, 0, 1, 2]),
        faults=faults,
        servers=any_server_faults(rare),
        limited=(poison is not None and poison.kind == "unsendable") or rare.random() > 0.5,
        correlation=rare.choice([0.0, 1.0]),
        releases=rare.choice([0, 0, 2, 6]),
    )
    return config, mishaps, chance.randint(1, 3)


def any_job_over_sites(chance: random.Random) -> tuple[JobConfig, Mishaps, int]:
    """Draw a random job some of whose engines, or all, are at other sites."""
    config, mishaps, engines = any_job(chance)
    aside = random.Random(f"sites {chance.getstate()}")
    sites = tuple(any_site(name, aside) for name in ("east", "west")[: aside.choice([1, 1, 2])])
    pools = [{"name": "a"}, *({"name": site.name, "site": site.name} for site in sites)]
    rollout = RolloutSpec.model_validate(
        {**config.spec.rollout.model_dump(mode="json", by_alias=True), "pools": pools}
    )
    spec = config.spec.model_copy(update={"rollout": rollout})
    if aside.random() < 0.5:  # nothing else goes wrong but that engines end
        rare = random.Random(repr(aside.getstate()))
        mishaps = Mishaps(
            change=mishaps.change,
            limited=mishaps.limited,
            deaths=rare.choice([0, 0, 3, 8]),
            drains=rare.choice([0, 0, 2, 4]),
        )
    return (
        config.model_copy(update={"spec": spec}),
        replace(mishaps, sites=sites),
        aside.choice([0, 1, engines]),
    )


def any_job_of_episodes(chance: random.Random) -> tuple[JobConfig, Mishaps, int]:
    """Draw a random job with an environment."""
    config, mishaps, engines = any_job(chance)
    aside = random.Random(f"episodes {chance.getstate()}")
    spec = config.spec.model_dump(mode="json", by_alias=True)
    spec["reward"] |= {"functions": [ENVIRONMENT_SCORE]}
    spec["rollout"]["sampling"] |= {"maxTokens": aside.choice([60, 120])}
    spec["rollout"]["environment"] = {
        "name": "simulated",
        "maxTurns": aside.choice([1, 2, 3, 3]),
        "timeoutSeconds": 20.0,
        "episodeSeconds": 50,
        # Drawn apart, so that everything else of a seed is what it was before there was a choice.
        "episodesPerSlot": random.Random(f"episodes per slot {chance.getstate()}").choice([1, 1.5, 2, 4]),
    }
    prompts = config.spec.steps * config.spec.data.prompts_per_step
    games = any_game_faults(aside, prompts=prompts)
    if games.poisoned_group and mishaps.poison is not None and not mishaps.poison.is_held_out:
        games = replace(games, poison=None)  # a job ends if a step of one prompt gives two up
    if games.poison is not None and games.poison[0]:
        spec["evaluation"] = {"samples": 3, "everySteps": 1}
    aged = f"g{aside.randrange(prompts)}" if aside.random() < 0.2 else ""
    changed = config.model_copy(update={"spec": RLJobSpec.model_validate(spec)})
    return changed, replace(mishaps, games=games, aged=aged), engines


AnyJob = Callable[[random.Random], tuple[JobConfig, Mishaps, int]]

DRAWS: dict[str, AnyJob] = {"sites": any_job_over_sites, "episodes": any_job_of_episodes}
"""Jobs that are not drawn by `any_job`."""


def simulate(
    seed: int,
    beside: Callable[[Job], Coroutine[Any, Any, None]] | None = None,
    *,
    draw: AnyJob = any_job,
) -> Job:
    """Run a seed's job to its end, and check it with `proof` and the audit.

    Args:
        draw: which jobs there are.
        beside: what happens to the job besides; it is cancelled when the job has ended.

    Raises:
        Exception: the job failed or a check did.
    """
    chance = random.Random(seed)
    config, mishaps, engines = draw(chance)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:

        async def whole() -> Job:
            job = Job(chance, config, mishaps, engines=engines, folder=Path(folder))
            other = None if beside is None else asyncio.create_task(beside(job))
            with job.disk.watched(), nullcontext() if job.games is None else job.games.items():
                await job.run()
            if other is not None:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
            if not prove(job):
                return job
            evidence = await collect(job.store, job.stored, job=config.uid, trainer=job.folder / "trainer")
            _prove_spec_recorded(evidence, mishaps.change)
            findings = audit(evidence)
            for check in findings.checks:
                require(check.holds, f"[audit] {check.claim}: {check.violations[:3]}")
            for what in ("resumed", "resumed_tokens"):
                job.happened[what] += findings.counts[what]
            return job

        return virtual_time.run(whole(), limit=LIMIT_SECONDS)


def _prove_spec_recorded(evidence: Evidence, change: PipelineSpec | None) -> None:
    """A coordinator that has recorded the user's new pipeline has recorded the rest of the new spec, too.

    Unless the job had ended by then: nothing that comes later is in force.
    """
    records = [r for m in evidence.ledger if m.counts and m.batch is not None for r in m.batch.records]
    records = list(takewhile(lambda record: not isinstance(record, JobFinished), records))
    pipelines = [replace(r, step=0) for r in records if isinstance(r, PipelineSet)]
    if change is not None and pipeline_set(change) in pipelines[1:]:
        specs = [r.spec for r in records if isinstance(r, SpecInForce)]
        found = any(spec["reward"]["timeoutSeconds"] == NEW_TIMEOUT_SECONDS for spec in specs)
        require(found, "[specs] a spec in force is not in the ledger")


def main(arguments: Sequence[str]) -> int:
    """Simulate a range of seeds in several processes and print those that fail.

    make soak SEED=17        # one seed, with what happened in it
    make soak SEEDS=20000    # all seeds from 0 to 19,999
    make soak SITES=1 SEED=17  # of jobs whose engines are at several sites
    make soak EPISODES=1 SEED=17  # of jobs with an environment
    """
    draw = next((DRAWS[argument] for argument in arguments if argument in DRAWS), any_job)
    numbers = [int(argument) for argument in arguments if argument not in DRAWS]
    first, last = numbers[0], numbers[-1] if len(numbers) > 1 else numbers[0] + 1
    if last == first + 1:
        sys.stdout.write(f"{dict(simulate(first, draw=draw).happened)}\n")
        return 0
    failed = 0
    with ProcessPoolExecutor() as pool:
        for done, (seed, error) in enumerate(
            pool.map(partial(outcome, draw=draw), range(first, last), chunksize=20), start=1
        ):
            if error:
                failed += 1
                say(f"seed {seed}: {error}\n  replay: make soak SEED={seed}")
            if done % 500 == 0:
                say(f"{done} of {last - first} seeds, {failed} failed")
    return int(failed > 0)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def check_outcomes(seeds: Iterable[int], *, draw: AnyJob = any_job) -> Counter[str]:
    """Simulate the jobs of these seeds; returns what happened in them, and how often.

    Raises:
        AssertionError: jobs failed; it says how to repeat each.
    """
    happened: Counter[str] = Counter()
    failed = [
        (seed, error) for seed, error in (outcome(seed, happened, draw=draw) for seed in seeds) if error
    ]
    kind = next((f"{name.upper()}=1 " for name, drawn in DRAWS.items() if drawn is draw), "")
    replays = "\n".join(
        f"seed {seed}: {error}\n  replay: make soak {kind}SEED={seed}" for seed, error in failed
    )
    assert not failed, replays
    return happened


def outcome(seed: int, happened: Counter[str] | None = None, *, draw: AnyJob = any_job) -> tuple[int, str]:
    """Simulate a seed's job; return the seed and the job's error, or "" if there is none.

    What happened in a job without an error is added to `happened`.
    """
    try:
        job = simulate(seed, draw=draw)
        if happened is not None:
            happened.update(job.happened)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}"
    return seed, ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
