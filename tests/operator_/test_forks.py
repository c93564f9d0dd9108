"""Roles of the local cluster as forks of one process: which are, how they end, and what happens when that one dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest
from children import running_children
from tests.waiting import until_async

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.local.execute import Process, StartAbandoned
from rljob_operator.cluster.local.fork_server import ForkServerProcess
from rljob_operator.cluster.local.forks import Forked, Forks
from rljob_operator.cluster.local.pod import Launch


@pytest.fixture
async def silent_server() -> AsyncIterator[str]:
    """The address of a NATS server that answers no request: a role asks again for longer than a test lasts."""

    greeted: list[asyncio.Task[None]] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id": "S", "version": "2.15.0", "headers": true, "max_payload": 1048576}\r\n'
        )
        with suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append(asyncio.create_task(greet(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await asyncio.gather(*greeted)  # all roles have ended


@pytest.fixture
def config(make_job: Callable[..., RLJob], defaults: ClusterDefaults, tmp_path: Path) -> JobConfig:
    config = resolve_job(make_job(), defaults).config
    (tmp_path / "job.json").write_text(config.model_dump_json(by_alias=True))
    return config


class Started:
    """Starts roles, with a log each."""

    def __init__(self, folder: Path, nats: str, *, ahead: bool = False) -> None:
        self.folder = folder
        self.environment = {**os.environ, worker_protocol.DIE_WITH_PARENT: "1"}
        self.server = ForkServerProcess(self.environment) if ahead else None
        self.forks = Forks(
            self.server.environment if self.server else self.environment,
            folder / "fork-server.log",
            server=self.server,
        )
        self.unwanted = asyncio.Event()
        self._own = {worker_protocol.NATS_URL: nats, worker_protocol.CONFIG: str(folder / "job.json")}

    async def start(self, *command: str, **variables: str) -> Process:
        """Start a role, or `python` with other arguments."""
        arguments = ("-m", worker_protocol.MODULE, *command) if len(command) == 1 else command
        environment = {**self.environment, **self._own, **variables}
        launch = Launch(
            (sys.executable, *arguments), environment, self.log, self.folder / "termination", None, 30.0
        )
        with self.log.open("ab") as log:
            return await self._start(launch, log)

    async def _start(self, launch: Launch, log: BinaryIO) -> Process:
        return await self.forks.start(launch, launch.environment, log, self.unwanted)

    @property
    def log(self) -> Path:
        return self.folder / "role.log"


@pytest.fixture
async def started(tmp_path: Path, config: JobConfig, silent_server: str) -> AsyncIterator[Started]:
    before = running_children()
    started = Started(tmp_path, silent_server)
    yield started
    await started.forks.close()
    assert running_children() <= before


async def test_roles_are_forked_from_one_process_and_other_programs_are_not(started: Started) -> None:
    """Nor is a role with a variable that a library may have read while it was imported. A trainer has one as the pod of
    a Job, which none reads."""
    roles = [
        await started.start("streams", RLJOB_POD="a"),
        await started.start("streams", RLJOB_POD="b", JOB_COMPLETION_INDEX="0"),
    ]
    others = [
        await started.start("streams", OMP_NUM_THREADS="1"),
        await started.start("-c", "import time; time.sleep(600)"),
    ]
    assert [type(role) for role in roles] == [Forked, Forked]
    (server,) = {psutil.Process(role.pid).ppid() for role in roles}
    assert psutil.Process(server).ppid() == os.getpid()
    assert {psutil.Process(other.pid).ppid() for other in others[:1]} == {os.getpid()}
    assert all(os.getsid(role.pid) == role.pid for role in roles)
    roles[0].send_signal(signal.SIGKILL)
    assert await roles[0].wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        roles[0].send_signal(signal.SIGTERM)
    assert psutil.Process(roles[1].pid).is_running()
    for process in (roles[1], *others):
        if not isinstance(process, Forked):
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def test_a_forked_role_says_why_it_failed_as_a_program_does(started: Started) -> None:
    (started.folder / "job.json").unlink()
    for variables in ({}, {"OMP_NUM_THREADS": "1"}):
        started.log.unlink(missing_ok=True)
        role = await started.start("coordinator", **variables)
        assert isinstance(role, Forked) == (not variables)
        assert await role.wait() == 1
        assert "FileNotFoundError" in started.log.read_text()


async def test_roles_end_with_the_fork_server_and_later_ones_are_programs(started: Started) -> None:
    role = await started.start("streams")
    psutil.Process(psutil.Process(role.pid).ppid()).kill()
    assert await role.wait() == -signal.SIGKILL
    after = await started.start("streams")
    assert not isinstance(after, Forked)
    after.send_signal(signal.SIGKILL)
    assert await after.wait() == -signal.SIGKILL


async def test_a_start_that_is_not_wanted_any_more_is_not_waited_for(started: Started) -> None:
    """The imports of a rollout with a Torch engine take seconds; Ctrl-C must not."""
    first = await started.start("streams")
    starting = asyncio.create_task(started.start("rollout"))
    await asyncio.sleep(0)
    started.unwanted.set()
    with pytest.raises(StartAbandoned):
        await starting
    assert psutil.Process(first.pid).is_running()


async def test_roles_are_forked_from_a_server_that_runs_already(
    tmp_path: Path, config: JobConfig, silent_server: str
) -> None:
    before = running_children()
    started = Started(tmp_path, silent_server, ahead=True)
    assert started.server is not None
    (server,) = running_children() - before
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "a_users_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    started.server.add_variables({"RLJOB_MODULES": str(modules)})
    started.server.import_ahead(["a_users_module"])
    await until_async((tmp_path / "imported").exists)  # nothing is to be forked yet
    role = await started.start("streams", RLJOB_MODULES=str(modules))
    assert psutil.Process(role.pid).ppid() == server.pid
    await started.forks.close()
    started.server.end()
    assert await role.wait() == -signal.SIGKILL
    assert running_children() <= before
