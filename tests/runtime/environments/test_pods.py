"""Environment servers in pods of their own: who may connect, and what becomes of episodes when pods come and go."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from environment_pods import Pods, config_of, write_keys
from obedient_environment import start
from tests.waiting import in_time, until_async, within

from rljob_core import worker_protocol
from rljob_core.errors import EnvironmentFailed
from rljob_core.failures import Reason, failure_in
from rljob_core.ports import ModelTurn
from rljob_runtime.environments.link import EpisodePlayer
from rljob_runtime.environments.messages import EnvironmentSetup
from rljob_runtime.environments.pod_keys import client_context, server_context
from rljob_runtime.environments.replicas import EnvironmentReplicas
from rljob_runtime.process.frames import closed, frame, pickled, read_frame


@pytest.fixture
async def pods(module: str, tmp_path: Path) -> AsyncIterator[Pods]:
    pods = Pods(
        config_of(f"{module}:Obedient", timeoutSeconds=60, options={"score": 0.25}), tmp_path / "pods"
    )
    yield pods
    await pods.close()


@pytest.fixture
async def worker(pods: Pods) -> AsyncIterator[EnvironmentReplicas]:
    worker = pods.worker()
    await worker.start()
    yield worker
    await worker.close()


async def opened(worker: EnvironmentReplicas) -> EpisodePlayer:
    async with within():
        await worker.available()
        return await worker.open(start())


def turn(text: str) -> ModelTurn:
    return ModelTurn(text, [1], truncated=False)


@pytest.mark.smoke
async def test_an_episode_is_played_in_a_pod(pods: Pods, worker: EnvironmentReplicas) -> None:
    await pods.add()
    player = await opened(worker)
    observation = await player.react(turn("text"))
    assert observation is not None
    assert observation.text == "it is 7"
    connecting = (await player.react(turn("secret")), turn("connect"))
    assert connecting[0] is not None
    assert connecting[0].text == "[]"
    with pytest.raises(EnvironmentFailed, match=r"EnvironmentRaised.*Permission"):
        await player.react(connecting[1])  # it may open no sockets
    assert await player.score(truncated=False) == 0.25
    player.close()


async def test_a_pod_plays_for_several_workers_and_one_that_goes_ends_its_own_episodes(
    pods: Pods, worker: EnvironmentReplicas
) -> None:
    await pods.add()
    other = pods.worker()
    await other.start()
    player, gone = await opened(worker), await opened(other)
    assert await gone.score(truncated=False) == 0.25
    await other.close()
    assert await player.score(truncated=False) == 0.25


@pytest.mark.smoke
async def test_episodes_are_spread_and_a_killed_pod_costs_its_own(
    pods: Pods, worker: EnvironmentReplicas
) -> None:
    killed, left = await pods.add(), await pods.add()
    await opened(worker)
    await until_async(lambda: len(worker._open_links()) == 2)
    players = [await opened(worker) for _ in range(5)]
    by_pod = {address: link.episodes for address, link in worker._links.items()}
    assert by_pod == {killed.address: 3, left.address: 3}
    waiting = [asyncio.create_task(player.react(turn("wait"))) for player in players]
    await asyncio.sleep(0.2)
    pods.listed.discard(killed.address)
    await killed.end()
    await until_async(lambda: sum(task.done() for task in waiting) >= 2)
    lost = [task.exception() for task in waiting if task.done()]
    assert 2 <= len(lost) <= 3
    assert all(isinstance(error, EnvironmentFailed) and error.reason == "EnvironmentLost" for error in lost)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    player = await opened(worker)
    assert worker._links.keys() == {left.address}
    assert await player.score(truncated=False) == 0.25
    # It comes back, at the same address.
    again = await pods.add()
    await until_async(lambda: again.address in worker._links)


async def test_episodes_wait_while_there_is_no_pod(pods: Pods, worker: EnvironmentReplicas) -> None:
    waiting = asyncio.create_task(worker.available())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    with pytest.raises(EnvironmentFailed, match="EnvironmentNotStarted") as failed:
        await worker.open(start())
    assert not failed.value.blamed
    await pods.add()
    await in_time(waiting)


async def test_a_pod_that_drains_plays_its_episodes_to_their_end_and_opens_no_more(
    pods: Pods, worker: EnvironmentReplicas
) -> None:
    first = await pods.add()
    player = await opened(worker)
    (link,) = worker._links.values()
    first.process.send_signal(signal.SIGTERM)
    await until_async(lambda: link.draining)
    assert not first.ready.exists()
    with pytest.raises(EnvironmentFailed, match="EnvironmentDraining") as failed:
        await link.open(start())
    assert not failed.value.blamed
    waiting = asyncio.create_task(opened(worker))
    second = await pods.add()
    other = await waiting
    assert worker._links[second.address].episodes == 1
    assert first.process.returncode is None
    assert await player.score(truncated=False) == 0.25
    player.close()
    assert await in_time(first.process.wait()) == 0
    assert await other.score(truncated=False) == 0.25


async def test_an_episode_that_a_draining_pod_refuses_is_opened_by_another(
    pods: Pods, worker: EnvironmentReplicas
) -> None:
    draining = await pods.add()
    player = await opened(worker)  # which keeps it from ending
    (link,) = worker._links.values()
    draining.process.send_signal(signal.SIGTERM)
    await until_async(lambda: link.draining)
    await pods.add()
    await until_async(lambda: len(worker._links) == 2)
    link.draining = False  # as if its word had not come yet
    link.episodes = -1
    assert await (await opened(worker)).score(truncated=False) == 0.25
    assert link.draining
    player.close()


# ------------------------------------------------------------------------------------------ who may connect


async def refusal(
    pods: Pods, context: ssl.SSLContext | None, host: str = worker_protocol.ENVIRONMENT_HOST
) -> str:
    """What becomes of a connection over which a setup that would do harm is sent at once."""
    (pod,) = pods.pods
    harmful = frame(pickled(Harm(pods._folder / "harmed")))
    named = {"ssl": context, "server_hostname": host} if context is not None else {}
    try:
        reader, writer = await asyncio.open_connection(*pod.address, **named)
    except OSError as error:
        return type(error).__name__
    try:
        async with within():
            writer.write(harmful)
            await read_frame(reader, 64)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        return type(error).__name__
    finally:
        await closed((reader, writer))
        assert not (pods._folder / "harmed").exists()
    return "greeted"


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other end closes the connection."""
    found = bytearray()
    async with within():
        try:
            while data := await reader.read(65536):
                found += data
        except ConnectionError:
            pass
    return bytes(found)


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


async def test_nobody_without_the_workers_key_is_read(
    pods: Pods, worker: EnvironmentReplicas, tmp_path: Path
) -> None:
    await pods.add()
    other_job = write_keys(tmp_path / "other job", uid="u-2")
    revoked = write_keys(tmp_path / "revoked", generation=1)
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.load_verify_locations(pods.keys / "workers" / worker_protocol.ENVIRONMENT_AUTHORITY)
    pods_own = client_context(pods.keys / "pods")
    assert await refusal(pods, None) != "greeted"
    assert await refusal(pods, nameless) != "greeted"
    assert await refusal(pods, pods_own) != "greeted"
    for folder in (other_job, revoked):
        stranger = client_context(folder / "workers")
        assert (
            await refusal(pods, stranger) == "SSLCertVerificationError"
        )  # it does not trust the pod, either
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        assert await refusal(pods, stranger) != "greeted"
    # The pod goes on, and who has the key is read: what is refused above would do harm.
    assert await (await opened(worker)).score(truncated=False) == 0.25
    known = client_context(pods.keys / "workers")
    (pod,) = pods.pods
    _, writer = await asyncio.open_connection(
        *pod.address, ssl=known, server_hostname=worker_protocol.ENVIRONMENT_HOST
    )
    writer.write(frame(pickled(Harm(pods._folder / "harmed"))))
    await until_async((pods._folder / "harmed").exists)
    writer.transport.abort()
    await asyncio.sleep(0.1)


async def test_what_was_recorded_of_a_connection_proves_nothing_in_another(pods: Pods) -> None:
    pod = await pods.add()
    sent = bytearray()

    async def recorded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, on = await asyncio.open_connection(*pod.address)

        async def back() -> None:
            while data := await there.read(65536):
                writer.write(data)

        task = asyncio.create_task(back())
        while data := await reader.read(65536):
            sent.extend(data)
            on.write(data)
        task.cancel()
        await closed((there, on))
        await closed((reader, writer))

    between = await asyncio.start_server(recorded, "127.0.0.1", 0)
    pods.listed = {between.sockets[0].getsockname()[:2]}
    worker = pods.worker()
    await worker.start()
    assert await (await opened(worker)).score(truncated=False) == 0.25
    await worker.close()
    between.close()
    assert len(sent) > 1000
    assert b"Obedient" not in sent
    reader, writer = await asyncio.open_connection(*pod.address)
    writer.write(bytes(sent))
    answer = await rest_of(reader)
    await closed((reader, writer))
    # Of the first flight a server answers its part of the handshake; it takes nothing that follows.
    assert pod.process.returncode is None
    other = pods.worker()
    pods.listed = {pod.address}
    await other.start()
    await opened(other)
    await other.close()
    assert len(answer) < 4096


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x40\x00" + bytes(200), b"\x00" * 70_000],
    ids=["HTTP", "a cut handshake", "zeros"],
)
async def test_garbage_costs_its_connection_alone(
    pods: Pods, worker: EnvironmentReplicas, garbage: bytes
) -> None:
    pod = await pods.add()
    player = await opened(worker)
    reader, writer = await asyncio.open_connection(*pod.address)
    writer.write(garbage)
    await rest_of(reader)
    await closed((reader, writer))
    assert await player.score(truncated=False) == 0.25


@pytest.mark.parametrize("strangers", ["another job's", "a worker's"])
async def test_a_worker_says_nothing_to_a_server_without_the_pods_key(
    pods: Pods, tmp_path: Path, strangers: str
) -> None:
    folder = (
        write_keys(tmp_path / "other", uid="u-2") / "pods"
        if strangers == "another job's"
        else pods.keys / "workers"
    )
    heard = bytearray()

    serving = set[asyncio.Task[Any]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(cast("asyncio.Task[Any]", asyncio.current_task()))
        try:
            heard.extend(await reader.read())
        finally:
            await closed((reader, writer))

    context = server_context(folder)
    context.verify_mode = ssl.CERT_NONE
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    pods.listed = {server.sockets[0].getsockname()[:2]}
    worker = pods.worker()
    await worker.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.available(), 5)
    await worker.close()
    server.close()
    await asyncio.gather(*serving, return_exceptions=True)
    assert not heard


async def test_who_says_nothing_is_sent_away(pods: Pods) -> None:
    pod = await pods.add()
    with socket.create_connection(pod.address, 60) as silent:
        assert silent.recv(1) == b""


# ------------------------------------------------------------------------------------------ pods that cannot play


async def test_a_pod_whose_image_has_no_such_environment_is_never_ready(pods: Pods) -> None:
    pods.config = config_of("no_such_module:Game")
    with pytest.raises(AssertionError):
        await pods.add()
    (pod,) = pods.pods
    assert pod.process.returncode == worker_protocol.EXIT_USER_ERROR
    failure = failure_in(pod.message)
    assert failure is not None
    assert failure.reason is Reason.INVALID_SPEC
    assert failure.detail.startswith("spec.rollout.environment.name ")
    assert "no_such_module" in pod.message


async def test_a_server_says_again_and_again_that_it_is_alive(pods: Pods) -> None:
    pod = await pods.add()
    os.utime(pod.ready, (0.0, 0.0))
    await until_async(lambda: pod.ready.stat().st_mtime > 0.0)
    pod.process.send_signal(signal.SIGSTOP)
    os.utime(pod.ready, (0.0, 0.0))
    await asyncio.sleep(6.0)
    assert pod.ready.stat().st_mtime == 0.0


async def test_a_worker_that_wants_another_environment_is_refused(
    pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    await pods.add()
    name = pods.config.spec.rollout.environment
    assert name is not None
    pods.config = config_of(name.name, timeoutSeconds=60, options={"score": 0.75})
    worker = pods.worker()
    await worker.start()
    await until_async(lambda: "this pod plays" in caplog.text)
    await worker.close()


def test_a_setup_may_be_pickled_and_compared() -> None:
    setup = EnvironmentSetup("a:B", {"x": [1, 2.5]}, 30.0)
    assert pickle.loads(pickled(setup)) == EnvironmentSetup("a:B", {"x": [1, 2.5]}, 30)


async def test_the_server_imports_no_torch() -> None:
    heavy = "{'torch', 'transformers', 'nats', 'aiohttp'}"
    code = f"import rljob_runtime.environments.pod_server, sys; print(sorted({heavy} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"[]\n"
