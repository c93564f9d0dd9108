"""What an episode's process can do to others, and what is left of it."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import signal
import sys

import psutil
import pytest
from obedient_environment import Place, client_of, said, start
from tests.waiting import in_time, until_async

from rljob_core.errors import EnvironmentFailed, ResourceMissing
from rljob_core.ports import ModelTurn
from rljob_runtime.environments import client as client_module
from rljob_runtime.environments import link as link_module
from rljob_runtime.environments import server, server_start
from rljob_runtime.environments.client import EnvironmentClient
from rljob_runtime.environments.messages import EncodedObservation, EnvironmentSetup
from rljob_runtime.process.frames import frame, pickled, read_frame


def _scopes() -> bool:
    """Whether this kernel can keep a process from signalling others."""
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 6


def open_files() -> int:
    return psutil.Process().num_fds()


async def until_gone(process: int) -> None:
    def gone() -> bool:
        try:
            return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    await until_async(gone)


@pytest.mark.skipif(not _scopes(), reason="Landlock has scopes since Linux 6.12")
@pytest.mark.parametrize("which", ["server", "fork server"])
async def test_an_episode_cannot_signal_what_plays_it(client: EnvironmentClient, which: str) -> None:
    bystander = await client.open(start())
    assert await said(client, f"kill the {which}") == EncodedObservation(text="refused")
    assert await bystander.score(truncated=False) == 0.25


@pytest.mark.smoke
@pytest.mark.parametrize("end", ["close", "die"])
async def test_what_an_environment_has_started_ends_with_its_episode(
    client: EnvironmentClient, end: str
) -> None:
    episode = await client.open(start())
    started = list[int]()
    for what in ("child", "daemon")[: 2 if end == "close" else 1]:
        observed = await episode.react(ModelTurn(what, [1], truncated=False))
        assert observed is not None
        started.append(int(observed.text or ""))
    assert all(map(psutil.pid_exists, started))
    if end == "close":
        episode.close()
    else:
        with pytest.raises(EnvironmentFailed, match="exit code 7"):
            await episode.react(ModelTurn("die", [1], truncated=False))
    for process in started:
        await until_gone(process)


async def test_an_item_that_cannot_be_loaded_costs_its_own_episode(
    client: EnvironmentClient, module: str
) -> None:
    bystander = await client.open(start())
    item = {"board": importlib.import_module(module).Mine()}
    with pytest.raises(EnvironmentFailed, match=r"EnvironmentRaised: .*, open: RuntimeError: no item"):
        await client.open(start(item=item))
    with pytest.raises(EnvironmentFailed, match=r"EnvironmentInvalid: open: "):
        await client.open(start(item={"board": lambda: None}))
    assert await bystander.score(truncated=False) == 0.25


async def test_a_server_without_room_for_a_process_blames_no_episode(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_FAILING_PAUSE", 0.1)
    place = Place()
    client = client_of(f"{module}:Obedient", place=place)
    await client.start()
    try:
        limits = psutil.Process(place.pid).rlimit(psutil.RLIMIT_NOFILE)
        psutil.Process(place.pid).rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(EnvironmentFailed, match=r"EnvironmentNotStarted: .*no process starts") as failed:
            await client.open(start())
        assert not failed.value.blamed
        monkeypatch.setattr(client_module, "_MAX_FAILING", 0.0)
        with pytest.raises(ResourceMissing, match="no process starts"):
            await client.open(start())
        psutil.Process(place.pid).rlimit(psutil.RLIMIT_NOFILE, limits)
        assert await said(client, "end") is None
    finally:
        await client.close()


async def test_a_server_that_answers_nothing_is_lost_once_an_episode_has_waited_in_vain(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    client = client_of(f"{module}:Obedient", place=place)
    await client.start()
    try:
        first, episode, other = [await client.open(start()) for _ in range(3)]
        asleep = asyncio.create_task(other.react(ModelTurn("wait", [1], truncated=False)))
        call = asyncio.create_task(first.react(ModelTurn("wait", [1], truncated=False)))
        await asyncio.sleep(0.1)
        call.cancel()  # its time is up; the server answers a ping
        await asyncio.gather(call, return_exceptions=True)
        call = asyncio.create_task(episode.react(ModelTurn("wait", [1], truncated=False)))
        await asyncio.sleep(0.5)
        assert not asleep.done()
        monkeypatch.setattr(link_module, "_GRACE", 0.5)
        os.kill(place.pid, signal.SIGSTOP)
        call.cancel()
        with pytest.raises(EnvironmentFailed, match="did not answer"):
            await in_time(asleep)
        monkeypatch.setattr(link_module, "_GRACE", 60.0)
        assert await said(client, "end") is None
    finally:
        await client.close()


async def test_a_server_whose_first_process_is_killed_is_started_again(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_start, "_PAUSE_SECONDS", 0.0)
    client = client_of(f"{module}:Killed")
    try:
        with pytest.raises(ResourceMissing, match=r"cannot be loaded: .*EnvironmentCrashed: .*SIGKILL"):
            await client.start()
    finally:
        await client.close()


async def test_a_server_that_is_lost_and_does_not_come_back_ends_the_worker(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_start, "_PAUSE_SECONDS", 0.0)
    place = Place()
    client = client_of(f"{module}:Obedient", place=place)
    await client.start()
    try:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        os.kill(place.pid, signal.SIGKILL)
        with pytest.raises((ResourceMissing, EnvironmentFailed)):
            await client.open(start())
        before = open_files()
        with pytest.raises(ResourceMissing, match="cannot be loaded: FileNotFoundError"):
            await client.open(start())
        assert open_files() <= before
    finally:
        await client.close()


async def test_a_kernel_that_cannot_refuse_sockets_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def confine(*, network: bool) -> None:
        raise OSError(38, f"cannot refuse sockets: {network}")

    monkeypatch.setattr(server, "confine", confine)
    reader, writer = asyncio.StreamReader(), Kept()
    reader.feed_data(frame(pickled(EnvironmentSetup("game:Game", {}, 10.0))))
    await server.serve(reader, writer)  # type: ignore[arg-type]
    answered = asyncio.StreamReader()
    answered.feed_data(b"".join(writer.written))
    await read_frame(answered, 64)
    reply = (await read_frame(answered, 4000)).decode()
    assert "SpecError" in reply
    assert "spec.rollout.environment.network" in reply
    assert "cannot refuse sockets" in reply


class Kept:
    """A writer that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...
