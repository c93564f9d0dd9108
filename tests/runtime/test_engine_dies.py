"""A rollout worker whose engine dies: the coordinator learns what happened to it, and no process is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from dying_engine import install_dying_engine
from e2e.harness.nats_server import EmbeddedServer
from small_config import small_config
from tests.waiting import until_async

from rljob_contract.tiny_models import tiny_model
from rljob_core.actions import Announce
from rljob_core.config import JobConfig
from rljob_core.hang_limit import KnownPauses
from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_WORK,
    CoordinatorEvent,
    EngineDied,
    EngineWorkBatch,
    Generate,
)
from rljob_core.ports import Channel
from rljob_core.worker_protocol import EXIT_HUNG
from rljob_runtime.messaging.announce import publish_version
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.roles.rollout.hang_watch import PAUSES, PausesFile

PATIENCE = 600.0  # seconds; of a busy machine


@dataclass(frozen=True)
class Worker:
    """A rollout worker's first process, and its files."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def end(self) -> tuple[int, str]:
        """The exit code and the termination message."""
        code = self.process.wait(PATIENCE)
        message = self.folder / "termination"
        return code, message.read_text() if message.exists() else ""


Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(tmp_path: Path, model: Path) -> JobConfig:
    return small_config(tmp_path, model, job=f"j{uuid.uuid4().hex[:8]}", engine="Dying")


@pytest.fixture
def store(config: JobConfig, nats_server: EmbeddedServer) -> Callable[[], NatsStore]:
    return lambda: NatsStore(nats_server.url, subject=config.subject, stream_prefix=config.stream_prefix)


@pytest.fixture
def start(
    tmp_path: Path, config: JobConfig, nats_server: EmbeddedServer, store: Callable[[], NatsStore]
) -> Iterator[Start]:
    """Start a worker whose engine ends in some way when it starts; earlier ones of its pod have left `pauses`."""
    plugins = install_dying_engine(tmp_path / "plugins")
    workers: list[Worker] = []

    async def create_streams() -> None:
        opened = store()
        await opened.open()
        await opened.close()

    asyncio.run(create_streams())

    def begin(how: str, pauses: KnownPauses | None = None) -> Worker:
        folder = tmp_path / f"rollout-{len(workers)}"
        folder.mkdir()
        PausesFile(folder / PAUSES).write(pauses)
        values = config.model_dump(mode="json", by_alias=True)
        engine = values["spec"]["rollout"]["engine"]
        engine["options"] = {"start": how, "slots": 8, "words": {"segfault": "segfault", "silent": "silent"}}
        (folder / "config.json").write_text(JobConfig.model_validate(values).model_dump_json(by_alias=True))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH")])),
            "RLJOB_CONFIG": str(folder / "config.json"),
            "RLJOB_NATS_URL": nats_server.url,
            "RLJOB_POD": folder.name,
            "RLJOB_POOL": "a",
            "RLJOB_READY_FILE": str(folder / "ready"),
            "RLJOB_TERMINATION_LOG": str(folder / "termination"),
        }
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "rljob_runtime.main", "rollout"]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        workers.append(Worker(process, folder))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


async def received(store: NatsStore, events: int) -> list[CoordinatorEvent]:
    """The coordinator's next events; fewer, where no more come in some seconds."""
    await store.open()
    try:
        queue = await store.queue(Channel.EVENTS, ">", name="coordinator")
        found: list[CoordinatorEvent] = []
        while len(found) < events and (
            deliveries := await queue.fetch(messages=64, max_bytes=1 << 20, timeout=2.0)
        ):
            for delivery in deliveries:
                assert delivery.message.suffix == "rollout"
                found.append(COORDINATOR_EVENT.validate_json(delivery.message.data))
                await delivery.ack()
        return found
    finally:
        await store.close()


def engine_of(worker: Worker) -> psutil.Process:
    """The process with the engine, once that starts."""
    while "started" not in worker.log:
        with pytest.raises(subprocess.TimeoutExpired):
            worker.process.wait(0.1)
    (engine,) = psutil.Process(worker.process.pid).children()
    return engine


ENDS = {
    "segfault": (139, "Segmentation fault in string_at (__init__.py:"),
    "kill": (137, ""),
    "exit": (1, "SystemExit: 0"),
    "raise": (1, "RuntimeError: no kernel for this prompt"),
}


def test_the_coordinator_learns_how_each_engine_died(start: Start, store: Callable[[], NatsStore]) -> None:
    workers = {how: start(how) for how in ENDS}
    for how, (code, words) in ENDS.items():
        ended, message = workers[how].end()
        assert ended == code, workers[how].log
        assert message.startswith(words), workers[how].log
    events = asyncio.run(received(store(), len(ENDS)))
    assert len(events) == len(ENDS)
    by_pod = {event.engine.partition(".")[0]: event for event in events if isinstance(event, EngineDied)}
    for how, (code, words) in ENDS.items():
        event = by_pod[workers[how].folder.name]
        assert event.exit_code == code
        assert event.message.startswith(words)
        assert len(event.engine.partition(".")[2]) == 8


def test_of_what_has_outlived_an_engine_the_report_names_what_the_next_one_began_with(
    start: Start, store: Callable[[], NatsStore]
) -> None:
    """All of it is sent at once, and the engine has room for all of it."""
    event = death_by(start(""), store, ["well", "well", "segfault", "well"])
    assert event.beginning == "g2"


def test_one_that_hangs_is_ended_after_as_long_as_earlier_engines_of_its_pod_have_shown(
    start: Start, store: Callable[[], NatsStore]
) -> None:
    known = KnownPauses(seconds=3, longest=1000, total=10_000, swaps=2)
    worker = start("", known)
    event = death_by(worker, store, ["well", "silent"])
    assert (event.exit_code, event.message) == (EXIT_HUNG, "no new token for 3 s: ended by its watcher")
    assert event.beginning == "g1"
    assert {"g1.0", "g1.1"} <= set(event.trajectories)
    assert all(tokens >= 0 for tokens in event.tokens)
    assert PausesFile(worker.folder / PAUSES).read() == replace(known, seconds=6)


def death_by(worker: Worker, store: Callable[[], NatsStore], words: Sequence[str]) -> EngineDied:
    """The report of an engine's death by these prompts, two siblings each, all of which have outlived another one."""

    async def send() -> list[CoordinatorEvent]:
        opened = store()
        await opened.open()
        await publish_version(opened, Announce(1, 0, None, "", False))
        serving = await until_async(lambda: re.search(r"engine (\S+) serves", worker.log))
        work = tuple(
            Generate(f"g{number}.{sibling}", 1, number, 0, "sampled", 0, survivor=True)
            for number in range(len(words))
            for sibling in range(2)
        )
        texts = {f"g{number}": f"{number} {word}" for number, word in enumerate(words)}
        batch = ENGINE_WORK.dump_json(EngineWorkBatch(1, work, texts))
        await opened.publish(Channel.WORK, f"engine.{serving[1]}", batch)
        await opened.close()
        await asyncio.to_thread(worker.end)
        return await received(store(), 1)

    (event,) = asyncio.run(send())
    assert isinstance(event, EngineDied)
    return event


def test_one_that_is_asked_to_end_and_one_that_is_killed_from_outside_report_nothing(
    start: Start, store: Callable[[], NatsStore]
) -> None:
    asked, killed = start(""), start("")
    engines = [engine_of(worker) for worker in (asked, killed)]
    asked.process.send_signal(signal.SIGTERM)
    killed.process.kill()
    assert asked.end() == (0, "")
    _, alive = psutil.wait_procs(engines, timeout=PATIENCE)
    assert not alive
    assert asyncio.run(received(store(), 1)) == []
