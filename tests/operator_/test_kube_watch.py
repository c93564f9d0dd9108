"""Watches of children: what was deleted while nobody watched is found out, what we made meanwhile is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from e2e.harness.fixtures import SharedControlPlane
from kubeconfigs import write_kubeconfig
from tenacity import AsyncRetrying, stop_after_delay, wait_fixed
from tests.waiting import until_async

from rljob_operator.cluster.kube.api import _METADATA, KubeApi, Page
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.kube.watch import ChildWatches
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import LABEL_JOB

pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("operator")]


def config_map(name: str, version: int, *, job: str = "sums") -> Manifest:
    metadata = {"name": name, "namespace": "a", "uid": name, "resourceVersion": str(version)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "labels": {LABEL_JOB: job}},
    }


class Server(KubeApi):
    """Lists and watches of ConfigMaps, as a test says; of other kinds there are none."""

    def __init__(self, lists: list[Page], watches: list[list[tuple[str, Manifest]]]) -> None:
        self.lists = lists
        self.watches = watches
        self.asked: list[str] = []

    async def pages(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Page]:
        yield self.lists.pop(0) if kind == "ConfigMap" else Page([], "1")

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        if kind == "ConfigMap":
            self.asked.append(version)
            if self.watches:
                for event in self.watches.pop(0):
                    yield event
                raise ApiError(410, "Expired", "too old")
        await asyncio.Event().wait()


async def followed(server: KubeApi, cache: KubeCache, done: Callable[[], bool]) -> list[tuple[str, str]]:
    """What was reported until something was so."""
    said: list[tuple[str, str]] = []

    def seen(event: str, manifest: Manifest) -> None:
        said.append((event, manifest["metadata"]["name"]))
        if event == "DELETED":
            cache.remove(manifest)
        else:
            cache.put(manifest)

    watches = ChildWatches(server, cache, [""], seen=seen)
    await watches.read()
    await until(done, asyncio.create_task(watches.run()))
    return said


async def until(done: Callable[[], bool], running: asyncio.Task[None]) -> None:
    await until_async(done, alive=lambda: not running.done())
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_deletions_that_nobody_watched_are_reported_and_what_is_newer_than_the_list_is_kept() -> None:
    first = Page([config_map("stays", 1), config_map("goes", 2), config_map("other", 2, job="b")], "5")
    bookmark: Manifest = {"kind": "ConfigMap", "metadata": {"resourceVersion": "9"}}
    server = Server(
        [first, Page([config_map("stays", 1)], "20")],
        [[("MODIFIED", config_map("ours", 30)), ("BOOKMARK", bookmark)]],
    )
    said = await followed(server, cache := KubeCache(), lambda: len(server.asked) == 2)
    assert server.asked == ["5", "20"]
    assert said == [("MODIFIED", "ours"), ("ADDED", "stays"), ("DELETED", "goes"), ("DELETED", "other")]
    assert {m["metadata"]["name"] for m in cache.children(("a", "sums"))} == {"stays", "ours"}


async def test_a_real_server_is_read_in_pages_and_followed(
    control_plane: SharedControlPlane, namespace: str
) -> None:
    control_plane.kubectl("apply", "--server-side", "-k", "crds")
    control_plane.kubectl.wait("condition=Established", "crd/rolloutpools.rljob.dev")
    api = KubeApi(KubeLogin(control_plane.kubeconfig))

    def make(name: str) -> Awaitable[Manifest]:
        metadata = {"name": name, "namespace": namespace, "labels": {LABEL_JOB: "sums"}}
        long = {"text": "x" * 300_000}  # of lines longer than what aiohttp reads by itself
        return api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": long})

    await make("before")
    cache, said = KubeCache(), list[str]()
    watches = ChildWatches(
        api, cache, [namespace], seen=lambda event, m: said.append(f"{event} {m['metadata']['name']}")
    )
    async for attempt in AsyncRetrying(wait=wait_fixed(0.1), stop=stop_after_delay(60)):
        with attempt:  # the server may still be busy with the CRD
            await watches.read()
    assert len(cache) == 1
    assert cache.filled
    following = asyncio.create_task(watches.run())
    await make("after")
    await until(lambda: said == ["ADDED after"], following)
    await api.close()


async def test_a_version_of_the_past_and_a_server_that_is_gone_are_errors(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n")

    async with answering(answer, tmp_path) as api:

        async def status() -> int:
            try:
                async for _ in api.watch("Pod", "", LABEL_JOB, "1"):
                    raise AssertionError
            except ApiError as error:
                return error.status
            raise AssertionError

        assert await status() == 410
    assert await status() == 0
    await api.close()


@asynccontextmanager
async def answering(
    answer: Callable[[web.Request], Awaitable[web.Response]], folder: Path
) -> AsyncIterator[KubeApi]:
    """A client of an API server that answers every GET so; afterwards, of one that is gone."""
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = KubeApi(KubeLogin(write_kubeconfig(folder / "kubeconfig", {"server": server}, {})))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


async def test_a_cache_counts_as_filled_once_every_kind_was_listed(tmp_path: Path) -> None:
    failing = True

    async def answer(request: web.Request) -> web.Response:
        if failing and "rolloutpools" in request.path:
            return web.json_response({"kind": "Status", "code": 503}, status=503)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    cache = KubeCache()
    async with answering(answer, tmp_path) as api:
        watches = ChildWatches(api, cache, ["a"], seen=lambda *_: None)
        with pytest.raises(ApiError):
            await watches.read()
        assert not cache.filled
        failing = False
        await watches.read()
        assert cache.filled


async def test_metadata_is_read_from_a_server_that_sends_whole_objects(tmp_path: Path) -> None:
    """A server of an aggregated API may not know `PartialObjectMetadataList`."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        accepted = [part.strip() for part in request.headers["Accept"].split(",")]
        asked.extend(accepted)
        if "application/json" not in accepted:
            return web.json_response({"kind": "Status", "code": 406, "reason": "NotAcceptable"}, status=406)
        found = {**config_map("one", 7), "data": {"text": "x"}}
        return web.json_response({"kind": "ConfigMapList", "metadata": {}, "items": [found]})

    async with answering(answer, tmp_path) as api:
        assert await api.find(Ref("ConfigMap", "a", "one")) == config_map("one", 7)
    assert asked[0].startswith("application/json;as=PartialObjectMetadataList"), "preferred"


async def test_a_real_server_sends_metadata_alone(control_plane: SharedControlPlane, namespace: str) -> None:
    api = KubeApi(KubeLogin(control_plane.kubeconfig))
    ref = Ref("ConfigMap", namespace, "found")
    metadata = {"name": ref.name, "namespace": namespace}
    made = await api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}
    )
    found = await api.find(ref)
    assert found is not None
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert await api.find(Ref("ConfigMap", namespace, "absent")) is None
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    listed = await api._request("GET", "ConfigMap", path, accept=_METADATA)
    assert listed["kind"] == "PartialObjectMetadataList"
    await api.close()
