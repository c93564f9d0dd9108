"""Each role with its own credentials on a real nats-server: what it needs works, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.errors import StoreFull, StoreUnavailable
from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    STEP_METRICS,
    EngineGone,
    EngineSignal,
    RoleFailed,
    StepMetrics,
)
from rljob_core.ports import WORK_QUEUES, Channel
from rljob_core.spec import RLJob, RLJobSpec
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.nats.accounts import Seeds, issuer, server_config
from rljob_operator.nats.credentials import job_credentials, operator_credentials
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_runtime.messaging.nats.answers import JetStreamError
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.server import EmbeddedServer
from rljob_runtime.messaging.nats.store import NatsStore

SECONDS = 60.0
"""After which a test that waits for something gives up."""
SEEDS = Seeds.complete({}, os.urandom)
ISSUER = issuer(SEEDS)


class Site:
    """A server that asks for credentials, and who connects to it."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self._folder = folder

    def credentials(self, holder: Holder, uid: str) -> str:
        return job_credentials(ISSUER, holder, namespace="default", job="roles", uid=uid)

    def store(self, holder: Holder, uid: str, *, of: str | None = None, **options: object) -> NatsStore:
        """A role's store; `of`: the UID of the job whose streams it tries for."""
        names = StreamNames.of_job(namespace="default", job="roles", uid=of or uid)
        return NatsStore(
            self.server.url,
            subject=names.subject,
            stream_prefix=names.prefix,
            credentials=self.credentials(holder, uid),
            inbox=inbox_of(uid, holder),
            **{"patience": 20.0, "create": holder is Holder.STREAMS} | options,  # type: ignore[arg-type]
        )

    @asynccontextmanager
    async def opened(
        self, holder: Holder, uid: str, *, of: str | None = None, **options: object
    ) -> AsyncIterator[NatsStore]:
        store = self.store(holder, uid, of=of, **options)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def create(self, uid: str) -> None:
        async with self.opened(Holder.STREAMS, uid):
            pass

    @asynccontextmanager
    async def connection(self, credentials: str, inbox: str) -> AsyncIterator[Connection]:
        connection = Connection(
            self.server.url, patience=SECONDS, attempt=SECONDS, credentials=credentials, inbox=inbox
        )
        await connection.open()
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        async with self.connection(operator_credentials(ISSUER), "_INBOX") as connection:
            yield connection


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"), accounts=server_config(SEEDS))
    asyncio.run(server.start())
    yield Site(server, tmp_path_factory.mktemp("credentials"))
    asyncio.run(server.kill())


@pytest.fixture
async def uid(site: Site) -> str:
    """A job whose streams are there."""
    uid = uuid4().hex
    await site.create(uid)
    return uid


# ------------------------------------------------------------------------------------------- who may do what

_SUFFIXES = {
    Channel.LEDGER: "records",
    Channel.WORK: "engine.pod-0.ab12",
    Channel.TRAINING: "trainer.1",
    Channel.TRAJECTORIES: "payload",
    Channel.PROGRESS: "g0.0",
    Channel.REWARDS: "results",
    Channel.VERSIONS: "policy",
    Channel.METRICS: "steps",
    Channel.WEIGHTS: "chunk.v1",
}
_QUEUES = {
    "take work": (Channel.WORK, "engine.pod-0.ab12", "engine-pod-0-ab12"),
    "take training": (Channel.TRAINING, "trainer.1", "trainer-1"),
    "take events": (Channel.EVENTS, ">", "coordinator"),
    "take trajectories": (Channel.TRAJECTORIES, "payload", "reward"),
}
ALLOWED: dict[Holder, set[str]] = {
    Holder.COORDINATOR: {
        "write ledger", "write work", "write training", "write versions", "write metrics",
        "event of coordinator", "signal coordinator", "signal engine.pod-0.ab12",
        "read ledger", "read trajectories", "read rewards", "read signals",
        "get ledger", "get trajectories", "get rewards", "get versions", "delete trajectories", "delete rewards",
        "last ledger", "last trajectories", "last rewards", "last versions", "count trajectories",
        "get progress", "last progress", "list progress", "purge progress",
        "purge work", "take events", "get weights", "last weights", "list weights",
    },
    Holder.ROLLOUT: {
        "write progress", "get progress", "last progress", "delete progress",
        "write trajectories", "event of rollout", "signal engine.pod-0.ab12", "read versions", "take work",
        "get weights", "last weights",
    },
    Holder.REWARD: {"write rewards", "event of reward", "take trajectories", "get trajectories", "last trajectories"},
    Holder.TRAINER: {
        "event of trainer", "take training", "get trajectories", "last trajectories",
        "write weights", "get weights", "last weights", "list weights", "purge weights",
    },
    Holder.READER: {
        "read ledger", "read trajectories", "read rewards", "read versions", "read metrics", "read signals",
        "get ledger", "get trajectories", "get rewards", "get versions", "get metrics", "depths",
        "last ledger", "last trajectories", "last rewards", "last versions", "last metrics",
        "get weights", "last weights", "list weights", "list progress",
    },
}  # fmt: skip


async def first(batches: AsyncIterator[object]) -> None:
    await anext(batches)
    await batches.aclose()  # type: ignore[attr-defined]


def operations(store: NatsStore) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that a store can do."""

    async def take(channel: Channel, suffix: str, name: str) -> None:
        queue = await store.queue(channel, suffix, name=name)
        await queue.fetch(messages=1, max_bytes=1 << 20, timeout=0.05)

    known: dict[str, Callable[[], Awaitable[object]]] = {"depths": store.depths}
    for channel in Channel:
        if channel in _SUFFIXES:
            known[f"write {channel}"] = lambda c=channel: store.publish(c, _SUFFIXES[c], b"x")
        if channel not in WORK_QUEUES:
            known[f"read {channel}"] = lambda c=channel: first(store.read(c))
        known[f"get {channel}"] = lambda c=channel: store.get(c, [999])
        known[f"last {channel}"] = lambda c=channel: store.last(c)
        known[f"delete {channel}"] = lambda c=channel: store.delete(c, [999])
        known[f"purge {channel}"] = lambda c=channel: store.purge(c, "engine.none.ab12")
    for role in ("coordinator", "rollout", "reward", "trainer"):
        event = COORDINATOR_EVENT.dump_json(RoleFailed(role, "no"))
        known[f"event of {role}"] = lambda r=role, e=event: store.publish(Channel.EVENTS, r, e)
    for key in ("coordinator", "engine.pod-0.ab12"):
        known[f"signal {key}"] = lambda k=key: store.put_signal(k, b"x")
    for name, (channel, _, queue) in _QUEUES.items():
        known[name.replace("take", "count")] = lambda c=channel, q=queue: store.unacknowledged(c, q)
    known["read signals"] = lambda: first(store.watch_signals())
    known["list progress"] = lambda: store.suffixes(Channel.PROGRESS, ">")
    known["list weights"] = lambda: store.suffixes(Channel.WEIGHTS, ">")
    for name, queue in _QUEUES.items():
        known[name] = lambda q=queue: take(*q)
    return known


@pytest.fixture
async def filled(site: Site, uid: str) -> str:
    """A job with something in each stream."""
    for holder, names in {
        Holder.COORDINATOR: ["write ledger", "write versions", "write metrics", "signal coordinator"],
        Holder.ROLLOUT: ["write trajectories"],
        Holder.REWARD: ["write rewards"],
    }.items():
        async with site.opened(holder, uid) as store:
            for name in names:
                await operations(store)[name]()
    return uid


@pytest.mark.parametrize("holder", ALLOWED)
async def test_a_role_can_do_what_it_needs_and_nothing_else(site: Site, filled: str, holder: Holder) -> None:
    refused, done = {}, set()
    async with site.opened(holder, filled) as store:
        for name, operation in operations(store).items():
            try:
                await asyncio.wait_for(operation(), SECONDS)
                done.add(name)
            except StoreUnavailable as error:
                refused[name] = str(error)
    assert done == ALLOWED[holder]
    assert all("permissions violation" in reason for reason in refused.values()), refused


@pytest.mark.parametrize("holder", ALLOWED)
async def test_another_jobs_streams_are_out_of_reach(site: Site, filled: str, holder: Holder) -> None:
    mine = uuid4().hex
    async with site.opened(holder, mine, of=filled) as store:
        for operation in operations(store).values():
            with pytest.raises(StoreUnavailable, match="permissions violation"):
                await asyncio.wait_for(operation(), SECONDS)


@pytest.mark.parametrize("holder", ALLOWED)
@pytest.mark.parametrize(
    "request_",
    [
        "STREAM.CREATE.{ledger}", "STREAM.UPDATE.{ledger}", "STREAM.DELETE.{ledger}", "STREAM.PURGE.{ledger}",
        "STREAM.UPDATE.{trajectories}",
        "STREAM.MSG.DELETE.{ledger}", "STREAM.SNAPSHOT.{ledger}",
        "STREAM.RESTORE.{ledger}", "STREAM.NAMES", "STREAM.LIST", "INFO", "CONSUMER.LIST.{training}",
        "CONSUMER.NAMES.{training}", "CONSUMER.CREATE.{ledger}", "CONSUMER.CREATE.{trajectories}.x",
        "CONSUMER.DURABLE.CREATE.{trajectories}.x",
        "CONSUMER.PAUSE.{trajectories}.reward",
    ],
)  # fmt: skip
async def test_no_role_may_administer(site: Site, uid: str, holder: Holder, request_: str) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=uid)
    subject = request_.format(**{channel.value: names.stream(channel) for channel in Channel})
    async with site.connection(site.credentials(holder, uid), inbox_of(uid, holder)) as connection:
        with pytest.raises(JetStreamError, match="permissions violation"):
            await connection.request(f"$JS.API.{subject}", b"{}")


@pytest.mark.parametrize("holder", [holder for holder in ALLOWED if holder is not Holder.REWARD])
async def test_only_who_takes_from_a_queue_may_remove_it(site: Site, uid: str, holder: Holder) -> None:
    queue = (
        f"{StreamNames.of_job(namespace='default', job='roles', uid=uid).stream(Channel.TRAJECTORIES)}.reward"
    )
    async with site.connection(site.credentials(holder, uid), inbox_of(uid, holder)) as connection:
        with pytest.raises(JetStreamError, match="permissions violation"):
            await connection.request(f"$JS.API.CONSUMER.DELETE.{queue}", b"{}")


async def test_a_role_cannot_listen_to_anothers_answers(site: Site, uid: str) -> None:
    credentials = site.credentials(Holder.ROLLOUT, uid)
    async with site.connection(credentials, inbox_of(uid, Holder.COORDINATOR)) as connection:
        with pytest.raises(Exception):  # noqa: B017, PT011  no answer ever comes
            await asyncio.wait_for(
                connection.request(f"$KV.RLJOB_default_roles_{uid}_signals.engine.a", b"x"), 1
            )


async def test_nobody_gets_in_without_credentials_or_with_those_of_another_installation(
    site: Site, uid: str, tmp_path: Path
) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=uid)
    foreign = tmp_path / "foreign.creds"
    foreign.write_text(
        job_credentials(
            issuer(Seeds.complete({}, os.urandom)), Holder.READER, namespace="default", job="roles", uid=uid
        )
    )
    for credentials in (None, str(foreign)):
        store = NatsStore(
            site.server.url,
            subject=names.subject,
            stream_prefix=names.prefix,
            patience=1,
            credentials=credentials,
        )
        with pytest.raises(StoreUnavailable, match="no nats-server answers"):
            await store.open()


# --------------------------------------------------------------------------------- answers sent elsewhere


@pytest.mark.parametrize(
    "question",
    [
        (Holder.ROLLOUT, "{subject}.trajectories.payload", b"{}"),
        (Holder.TRAINER, "$JS.API.DIRECT.GET.{prefix}_trajectories", b'{"seq":1}'),
        (Holder.TRAINER, "$JS.API.DIRECT.GET.{prefix}_trajectories", b'{"seq":999}'),
        (Holder.REWARD, "$JS.API.CONSUMER.MSG.NEXT.{prefix}_trajectories.reward", b'{"batch":1}'),
        (
            Holder.REWARD,
            "$JS.API.CONSUMER.MSG.NEXT.{prefix}_trajectories.reward",
            b'{"batch":9,"no_wait":true}',
        ),
        (Holder.ROLLOUT, "$JS.API.STREAM.INFO.{prefix}_versions", b""),
    ],
)
@pytest.mark.parametrize(
    "reply",
    [
        "{subject}.ledger.records",
        "$JS.API.STREAM.DELETE.{prefix}_ledger",
        "$JS.API.STREAM.PURGE.{prefix}_ledger",
        "$JS.API.STREAM.MSG.DELETE.{prefix}_ledger",
        "$KV.{prefix}_signals.coordinator",
    ],
)
async def test_an_answer_that_is_sent_elsewhere_does_nothing(
    site: Site, filled: str, question: tuple[Holder, str, bytes], reply: str
) -> None:
    """Permissions do not cover reply subjects: with one account, most of these change or delete the ledger."""
    holder, asked, body = question
    names = StreamNames.of_job(namespace="default", job="roles", uid=filled)
    place = {"subject": names.subject, "prefix": names.prefix}
    async with site.opened(Holder.ROLLOUT, filled) as rollout, site.opened(Holder.REWARD, filled) as reward:
        await rollout.publish(Channel.TRAJECTORIES, "payload", b"{}")
        await reward.queue(Channel.TRAJECTORIES, "payload", name="reward")
    async with (
        site.opened(Holder.READER, filled) as reader,
        site.connection(site.credentials(holder, filled), inbox_of(filled, holder)) as connection,
    ):
        before = await reader.depths()
        connection.send(asked.format(**place), body, reply.format(**place))
        await asyncio.sleep(0.15)
        after = await reader.depths()
        assert {**after, "trajectories": 0} == {**before, "trajectories": 0}
        signals = [key async for key, value in _some(reader.watch_signals()) if value == b"x"]
        assert signals == ["coordinator"]


@pytest.mark.parametrize("place", ["{subject}.ledger.records", "$JS.API.STREAM.DELETE.{prefix}_ledger"])
async def test_a_consumer_that_delivers_elsewhere_does_nothing(site: Site, filled: str, place: str) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=filled)
    versions, filter_subject = names.stream(Channel.VERSIONS), names.subject_of(Channel.VERSIONS, ">")
    config = {
        "name": "pushed",
        "filter_subject": filter_subject,
        "deliver_policy": "all",
        "ack_policy": "none",
        "deliver_subject": place.format(subject=names.subject, prefix=names.prefix),
    }
    async with (
        site.opened(Holder.READER, filled) as reader,
        site.connection(
            site.credentials(Holder.ROLLOUT, filled), inbox_of(filled, Holder.ROLLOUT)
        ) as connection,
    ):
        before = await reader.depths()
        subject = f"CONSUMER.CREATE.{versions}.pushed.{filter_subject}"
        await connection.call(subject, {"stream_name": versions, "config": config})
        await asyncio.sleep(0.3)
        assert await reader.depths() == before


async def _some(batches):
    """The first, whenever it comes, and what comes with it."""
    yield await asyncio.wait_for(anext(batches), SECONDS)
    with suppress(TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(batches), 0.1)
    await batches.aclose()


# ---------------------------------------------------------------------------------------------- whole jobs


def config_of(folder: Path, uid: str) -> JobConfig:
    """A small job on the emulated engine and backend."""
    lengths = {"median": 8, "min": 1, "max": 40}
    return JobConfig(
        namespace="default",
        job="roles",
        uid=uid,
        spec=RLJobSpec.model_validate(
            {
                "steps": 6,
                "model": {"uri": str(folder / "model")},
                "data": {"dataset": "chain_sum", "promptsPerStep": 4, "groupSize": 2},
                "pipeline": {"mode": "BoundedAsync", "maxStaleness": 2},
                "rollout": {
                    "engine": {
                        "name": "Emulated",
                        "options": {"slots": 6, "stepSeconds": 0.001, "lengths": lengths},
                    },
                    "pools": [{"name": "a", "replicas": 2}],
                },
                "trainer": {"backend": "Emulated", "microBatchTokens": 200},
            }
        ),
        weights_uri=str(folder / "weights"),
        checkpoint_uri=str(folder / "checkpoints"),
        trainer_log_uri=str(folder / "trainer"),
    )


class Workers:
    """A job's roles as processes of their own, each with its own credentials."""

    def __init__(self, site: Site, folder: Path, config: JobConfig) -> None:
        self._site = site
        self._folder = folder
        self._config = config
        self._file = folder / "config.json"
        self._file.write_text(config.model_dump_json(by_alias=True))
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, holder: Holder, pod: str, **more: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "RLJOB_CONFIG": str(self._file),
            "RLJOB_NATS_URL": self._site.server.url,
            "RLJOB_NATS_CREDENTIALS": self._site.credentials(holder, self._config.uid),
            "RLJOB_POD": pod,
            **more,
        }
        with (self._folder / f"{pod}.log").open("ab") as log:
            self.processes[pod] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rljob_runtime.main",
                holder.value,
                env=environment,
                stdout=log,
                stderr=log,
            )
        return self.processes[pod]

    async def train(self) -> None:
        """Start the trainer, and again while it fails, as the operator does."""
        for attempt in range(1, 4):
            trainer = await self.start(Holder.TRAINER, f"trainer-{attempt}", RLJOB_ATTEMPT=str(attempt))
            if await trainer.wait() == 0:
                return
        raise AssertionError("the trainer fails again and again")

    def logs(self) -> str:
        return "\n".join(f"{file.name}\n{file.read_text()}" for file in sorted(self._folder.glob("*.log")))

    async def __aenter__(self) -> Workers:
        await self.start(Holder.COORDINATOR, "coordinator-0")
        for pod in ("a-0", "a-1"):
            await self.start(Holder.ROLLOUT, pod, RLJOB_POOL="a")
        await self.start(Holder.REWARD, "reward-0")
        return self

    async def __aexit__(self, *_: object) -> None:
        running = [process for process in self.processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
        ended = asyncio.gather(*(process.wait() for process in running))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), 30)
        for process in running:
            if process.returncode is None:
                process.kill()
        await ended


async def until(store: NatsStore, done: Callable[[StepMetrics], bool]) -> StepMetrics:
    async for messages in store.read(Channel.METRICS):
        for line in (STEP_METRICS.validate_json(message.data) for message in messages):
            if done(line):
                return line
    raise AssertionError


@pytest.mark.slow
async def test_a_whole_job_runs_on_its_roles_credentials(site: Site, tmp_path: Path) -> None:
    """Through a restart of the server, an engine's death, and events that a role sends under another one's name."""
    uid = uuid4().hex
    tiny_model(tmp_path / "model")
    async with (
        Workers(site, tmp_path, config_of(tmp_path, uid)) as workers,
        site.opened(Holder.READER, uid, patience=100) as reader,
    ):
        training = asyncio.create_task(workers.train())
        await site.create(uid)  # for which all of them wait
        try:
            async with asyncio.timeout(200):
                await until(reader, lambda line: line.version >= 2)
                async with site.opened(Holder.REWARD, uid) as reward:
                    for event in (EngineGone("a-0"), RoleFailed("trainer", "forged")):
                        await reward.publish(Channel.EVENTS, "reward", COORDINATOR_EVENT.dump_json(event))
                while "refused 1 of what events.reward sent: only rollout" not in workers.logs():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                (engine,) = psutil.Process(workers.processes["a-1"].pid).children()
                engine.kill()
                assert await workers.processes["a-1"].wait() == 137  # once its death was reported
                await site.server.kill()
                await site.server.start()
                line = await until(reader, lambda line: bool(line.finished))
                await training
        except BaseException as error:
            training.cancel()
            error.add_note(workers.logs()[-20_000:])
            raise
        assert (line.finished, line.message, line.version) == ("Succeeded", "", 6)
        assert line.trajectories["consumed"] == 48
        assert "died: exit code 137" in workers.logs()
        for trouble in ("permissions violation", "was not informed"):
            assert trouble not in workers.logs()


async def test_the_streams_role_makes_them_as_a_process_of_its_own(site: Site, tmp_path: Path) -> None:
    uid = uuid4().hex
    config = tmp_path / "config.json"
    config.write_text(config_of(tmp_path, uid).model_dump_json(by_alias=True))
    environment = {
        **os.environ,
        "RLJOB_CONFIG": str(config),
        "RLJOB_NATS_URL": site.server.url,
        "RLJOB_NATS_CREDENTIALS": site.credentials(Holder.STREAMS, uid),
    }
    command = [sys.executable, "-m", "rljob_runtime.main", "streams"]
    for _ in range(2):  # it may be started again
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True, timeout=120)
    async with site.opened(Holder.READER, uid) as reader:
        assert await reader.depths() == {channel.value: 0 for channel in Channel}


def asking_job(uid: str) -> RLJob:
    """The job of the site's streams."""
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "roles", "namespace": "default", "uid": uid},
            "spec": {
                "steps": 1,
                "model": {"uri": "/model"},
                "data": {"dataset": "chain_sum"},
                "rollout": {"pools": [{"name": "cpu", "replicas": 1}]},
            },
        }
    )


async def test_the_operator_reads_how_much_each_engine_has_to_do(
    site: Site, uid: str, tmp_path: Path
) -> None:
    credentials = tmp_path / "operator.creds"
    credentials.write_text(operator_credentials(ISSUER))
    connection = NatsConnection(site.server.url, credentials=str(credentials))
    job_streams = JobStreams(connection)
    connected = asyncio.Event()
    connection.on_outage = connected.set
    running = asyncio.create_task(connection.run())
    job = asking_job(uid)
    try:
        assert await job_streams.engine_loads(job) == {}
        async with site.opened(Holder.ROLLOUT, uid) as engines:
            for pod, load in (("a-0", 3), ("b-1", 0)):
                signal = EngineSignal(f"{pod}.1f", "cpu", 1, 1, load, 8, load, 1, 0)
                await engines.put_signal(f"{ENGINE_SIGNALS}{pod}.1f", ENGINE_SIGNAL.dump_json(signal))
            await asyncio.wait_for(connected.wait(), SECONDS)
            assert await job_streams.engine_loads(job) == {"a-0": 4, "b-1": 1}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_operator_lets_a_stream_grow_that_no_role_of_the_job_may_touch(
    site: Site, uid: str, tmp_path: Path
) -> None:
    credentials = tmp_path / "operator.creds"
    credentials.write_text(operator_credentials(ISSUER))
    connection = NatsConnection(site.server.url, credentials=str(credentials))
    job_streams = JobStreams(connection)
    job = asking_job(uid)
    assert not await job_streams.make_room(job, 5 << 30), "it is not connected"
    connected = asyncio.Event()
    connection.on_outage = connected.set
    running = asyncio.create_task(connection.run())
    await asyncio.wait_for(connected.wait(), SECONDS)
    wanted = 5 << 30
    try:
        async with (
            site.opened(Holder.COORDINATOR, uid) as coordinator,
            site.opened(Holder.STREAMS, uid) as streams,
        ):
            with pytest.raises(StoreFull, match="4096 MB so far"):
                await coordinator.grow(Channel.TRAJECTORIES, wanted)
            assert not await job_streams.make_room(asking_job("none"), wanted), "it has no streams as yet"
            assert not await job_streams.make_room(job, 2 << 40), "the server has 1 TB"
            with pytest.raises(StoreFull):
                await coordinator.grow(Channel.TRAJECTORIES, wanted)
            assert await job_streams.make_room(job, wanted)
            await coordinator.grow(Channel.TRAJECTORIES, wanted)
            assert await job_streams.make_room(job, wanted - 1), "it is large enough"
            await coordinator.grow(Channel.TRAJECTORIES, wanted)  # and has not shrunk
            await streams.grow(Channel.TRAJECTORIES, wanted + 1)  # as its pod does at its start
            await coordinator.grow(Channel.TRAJECTORIES, wanted + 1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_operator_hears_figures_and_removes_streams(site: Site, uid: str) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=uid)
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    async with site.operator() as operator, site.opened(Holder.COORDINATOR, uid) as coordinator:
        await operator._client.listen("rljob.*.*.*.metrics.>", lambda message: heard.put_nowait(message.data))
        # Once this is answered, the server knows of the subscription: another connection's messages may overtake it.
        await operator.call(f"STREAM.INFO.{names.stream(Channel.METRICS)}", {})
        await coordinator.publish(Channel.METRICS, "steps", b"{}")
        assert await asyncio.wait_for(heard.get(), SECONDS) == b"{}"
        for stream in names.all_streams:
            info = await operator.call(f"STREAM.INFO.{stream}", {})
            assert info["config"]["name"] == stream
            assert (await operator.call(f"STREAM.DELETE.{stream}", {}))["success"]
        with pytest.raises(JetStreamError, match="permissions violation"):
            await operator.request(names.subject_of(Channel.LEDGER, "records"), json.dumps({}).encode())
