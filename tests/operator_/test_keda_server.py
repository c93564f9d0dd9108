"""The server that KEDA asks: when it answers, where it listens, and how much it lets one client have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from keda_client import Keda

from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.keda.server import ExternalScaler
from rljob_operator.reconcile.wanted_replicas import WantedReplicas

POOL = "job-rollout-a"


@pytest.fixture
def cache() -> KubeCache:
    """Of a job whose pool `a` should have three engines."""
    cache = KubeCache()
    pools = [{"name": "a", "policy": "External", "replicas": 3}]
    metadata: dict[str, Any] = {"namespace": "team", "name": "job"}
    cache.put({"kind": "RLJob", "metadata": metadata, "status": {"autoscaling": {"pools": pools}}})
    metadata = {"namespace": "team", "name": POOL, "labels": {"rljob.dev/job": "job"}}
    cache.put({"kind": "RolloutPool", "metadata": metadata})
    cache.filled = True
    return cache


@asynccontextmanager
async def serving(cache: KubeCache, address: str = "127.0.0.1:0", **limits: Any) -> AsyncIterator[int]:
    scaler = ExternalScaler(WantedReplicas(cache).for_autoscaler, **limits)
    try:
        yield await scaler.start(address)
    finally:
        await scaler.stop()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def client(opened: ExitStack, folder: Path, port: int, host: str = "127.0.0.1") -> Keda:
    return opened.enter_context(Keda(folder, f"{host}:{port}", "team", POOL))


def refused(caught: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return caught.value.code(), caught.value.details()


async def test_nobody_is_answered_before_all_was_read(
    cache: KubeCache, opened: ExitStack, tmp_path: Path
) -> None:
    cache.filled = False
    async with serving(cache) as port:
        keda = client(opened, tmp_path, port)
        for asked in (keda.is_active, keda.next_activity, partial(keda.metric, "s0-replicas")):
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.to_thread(asked)
            code, details = refused(caught)
            assert code == grpc.StatusCode.UNAVAILABLE
            assert "has not read" in details
        cache.filled = True
        assert await asyncio.to_thread(keda.is_active)
        assert await asyncio.to_thread(keda.metric, "s0-replicas") == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_one_address_is_for_both_protocols(
    cache: KubeCache, opened: ExitStack, tmp_path: Path, host: str
) -> None:
    async with serving(cache, "[::]:0") as port:
        assert await asyncio.to_thread(client(opened, tmp_path, port, host).is_active)


async def test_more_calls_at_once_than_allowed_are_refused(
    cache: KubeCache, opened: ExitStack, tmp_path: Path
) -> None:
    async with serving(cache, most_calls=2) as port:
        keda = client(opened, tmp_path, port)
        streams = [opened.enter_context(keda.activity()) for _ in range(2)]
        assert [await asyncio.to_thread(next, stream) for stream in streams] == [True, True]
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(keda.is_active)
        assert refused(caught)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_old_connection_is_closed_and_the_client_connects_again(
    cache: KubeCache, opened: ExitStack, tmp_path: Path
) -> None:
    async with serving(cache, connection_seconds=0.2, grace_seconds=0.2) as port:
        keda = client(opened, tmp_path, port)
        stream = opened.enter_context(keda.activity())
        assert await asyncio.to_thread(next, stream)
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(next, stream)
        assert refused(caught)[0] != grpc.StatusCode.DEADLINE_EXCEEDED, "nothing has ended the stream"
        assert await asyncio.to_thread(keda.is_active)


async def test_what_is_no_message_is_refused_and_not_logged(
    cache: KubeCache, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(cache) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in ("IsActive", "GetMetrics"):
            with pytest.raises(grpc.RpcError) as caught:
                await channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")(60_000 * b"\xff")
            assert refused(caught)[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records
