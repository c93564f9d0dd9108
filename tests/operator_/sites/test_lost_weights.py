"""A site's NATS server loses weights that it had confirmed: the operators of both sides copy them again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.nats_sites import HubAndSite, machine_dies
from joined_sites import JOB, HubSide, SiteSide, names_of
from tests.waiting import until_async

from rljob_core.ports import Channel
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event
from rljob_operator.decisions.joined_streams import MOST_VERSIONS, CopyInspection
from rljob_operator.decisions.weight_inspections import (
    inspection,
    is_over,
    lost_at_copy,
    next_look,
    versions_at_copy,
    weights_lost,
)
from rljob_operator.reconcile.hub_streams import LostWeights
from rljob_runtime.messaging.nats.store import NatsStore

SITE = "west"

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[HubAndSite]:
    async with HubAndSite(tmp_path, site=SITE) as found:
        yield found


async def write(hub: NatsStore, key: str, *, begin: int = 0, end: int = 4) -> None:
    """Store messages of a version as its writer does: two of its tensors, a part of its manifest, the manifest."""
    for suffix in ("chunk", "chunk", "part", "manifest")[begin:end]:
        await hub.publish(Channel.WEIGHTS, f"{suffix}.{key}", b"data", message_id=f"{key}-{begin}-{suffix}")
        begin += 1


async def same(hub: NatsStore, site: NatsStore) -> None:
    async def is_same() -> bool:
        return await hub.suffixes(Channel.WEIGHTS, ">") == await site.suffixes(Channel.WEIGHTS, ">")

    await until_async(is_same)


async def confirmed(hub: NatsStore) -> None:
    """Wait until the hub knows that the site has everything: it does not send it again."""
    stream = names_of("u-1").stream(Channel.WEIGHTS)

    async def is_confirmed() -> bool:
        consumer = await hub._connection.call(f"CONSUMER.INFO.{stream}.{SITE}", {})
        return bool(consumer["ack_floor"]["stream_seq"] == await hub.last_sequence(Channel.WEIGHTS))

    await until_async(is_confirmed)


@asynccontextmanager
async def store_of(server: EmbeddedServer, *, create: bool) -> AsyncIterator[NatsStore]:
    names = names_of("u-1")
    store = NatsStore(server.url, subject=names.subject, stream_prefix=names.prefix, create=create)
    await store.open()
    yield store
    await store.close()


async def test_weights_that_a_sites_power_cut_has_lost_are_copied_again(
    servers: HubAndSite, tmp_path: Path
) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    hub.put()
    async with (
        hub.started(),
        site.started(),
        store_of(servers.hub, create=True) as near,
        store_of(servers.site, create=False) as far,
    ):
        await write(near, "v1")
        await until_async(lambda: far.exists(Channel.WEIGHTS))
        await same(near, far)
        # All of a version is lost; then its beginning, before it is written to its end.
        for key, written in (("v2", 4), ("v3", 1)):
            async with machine_dies(servers.site, tmp_path / SITE):
                await write(near, key, end=written)
                await same(near, far)
                await confirmed(near)
            if written == 1:
                await until_async(lambda: site.streams.reports[JOB].inspected)
            await write(near, key, begin=written)
            await same(near, far)
            job, event = hub.events.pop()
            assert (job, event.reason) == (JOB, "SiteWeightsLost")
            assert event.message.startswith(
                f"the NATS server of Site {SITE} has lost messages of weights that it had stored, of {key}, as by"
            )
        assert not hub.events
        assert not site.streams.reports[JOB].versions, "they are said only while they are asked for"


async def test_each_site_is_named_with_what_it_has_lost_until_that_is_recorded() -> None:
    lost, refuses, other = LostWeights(), True, ("default", "other")
    events: list[tuple[tuple[str, str], str]] = []

    async def record(job: tuple[str, str], event: Event) -> None:
        if refuses and job == JOB:
            raise ApiError(500, "", "no")
        events.append((job, event.message))

    lost.note("west", JOB, ["v1"])
    lost.note("east", JOB, ["v2"])
    lost.note("west", other, ["v3"])
    await lost.tell("west", {JOB, other}, record)
    assert [(job, "of v3, as" in message) for job, message in events] == [(other, True)]
    refuses = False
    for site in ("west", "east", "west", "east"):
        await lost.tell(site, {JOB}, record)
    assert [(job, message.split()[5]) for job, message in events[1:]] == [(JOB, "west"), (JOB, "east")]
    assert ["v1" in message for _, message in events[1:]] == [True, False]
    lost.note("west", JOB, ["v4"])
    await lost.tell("west", set(), record)
    await lost.tell("west", {JOB}, record)
    assert len(events) == 3, "the job is gone"


ORIGINAL = {"chunk.v1": 2, "manifest.v1": 1, "chunk.v2": 3, "part.v2": 1, "manifest.v2": 1}
SEQUENCES = {"v1": 3, "v2": 8}


def test_it_is_asked_again_until_all_that_was_confirmed_is_part_of_whole_versions() -> None:
    def asked(confirmed: int, before: CopyInspection | None = None, **more: int) -> CopyInspection:
        added = {name.replace("_", "."): count for name, count in more.items()}
        original = {**ORIGINAL, **added}
        manifests = {**SEQUENCES, **{key: 12 for key in ("v3", "v4") if f"manifest.{key}" in added}}
        return inspection(
            server="S",
            copy_id="c",
            confirmed=confirmed,
            original=original,
            manifests=manifests,
            before=before,
        )

    assert asked(8).awaited == ()
    assert asked(7).awaited == ("v2",), "its rest may come although its beginning is lost"
    assert asked(8, chunk_v3=1, deleted_v3=1).awaited == ()
    assert is_over(asked(8)) == CopyInspection(server="S")
    first = asked(7, chunk_v3=1)
    assert first.awaited == ("v2", "v3")
    second = asked(9, first, chunk_v3=2, chunk_v4=1)
    assert (second.awaited, second.confirmed) == (("v3",), 9), "v4 has begun later"
    assert asked(10, second, chunk_v3=3, chunk_v4=1) is second
    assert asked(11, second, chunk_v3=3, manifest_v3=1) is second, "its end is not confirmed"
    for last in (
        asked(12, second, chunk_v3=3, manifest_v3=1, chunk_v4=9),
        asked(12, second, chunk_v3=3, deleted_v3=1, chunk_v4=9),
        asked(12, second, chunk_v4=9),
    ):
        assert (last.awaited, last.confirmed) == ((), 12)


def test_a_site_that_does_not_answer_is_looked_at_less_and_less_often() -> None:
    asked, pause, pauses = CopyInspection(server="S", copy_id="c", confirmed=8), 0.0, list[float]()
    for before in (None, *[asked] * 5):
        pauses.append(pause := next_look(asked, before, pause))
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert next_look(asked.model_copy(update={"confirmed": 9}), asked, pause) == 5.0
    assert next_look(is_over(asked), asked, 5.0) == next_look(None) == 60.0


def test_of_very_many_versions_that_are_not_confirmed_the_last_are_awaited() -> None:
    keys = [f"v{number:08d}" for number in range(MOST_VERSIONS + 10)]
    manifests = {key: number for number, key in enumerate(keys, 5)}
    asked = inspection(server="S", copy_id="c", confirmed=1, original={}, manifests=manifests, before=None)
    assert asked.awaited == tuple(keys[10:])


def test_what_a_site_has_lost_is_seen_by_what_it_says() -> None:
    def lost(confirmed: int, **more: int) -> list[str]:
        copy = {**ORIGINAL, **{name.replace("_", "."): count for name, count in more.items()}}
        asked = CopyInspection(server="S", copy_id="c", confirmed=confirmed)
        return lost_at_copy(asked, versions_at_copy(copy), ORIGINAL, SEQUENCES)

    assert lost(8) == []
    assert lost(8, chunk_v2=2) == lost(8, part_v2=0) == ["v2"]
    assert lost(7, chunk_v2=2) == [], "it has not come yet"
    assert lost(8, chunk_v1=1, chunk_v2=9) == ["v1"]
    assert lost(8, chunk_v3=1, manifest_v3=1) == []


def test_of_very_many_versions_the_last_are_compared() -> None:
    keys = [f"v{number:08d}" for number in range(MOST_VERSIONS + 10)]
    original = {f"{name}.{key}": 1 for key in keys for name in ("chunk", "manifest")}
    versions = versions_at_copy(original)
    assert list(versions) == keys[10:]
    sequences = {key: number for number, key in enumerate(keys, 1)}
    asked = CopyInspection(server="S", copy_id="c", confirmed=len(keys))
    assert lost_at_copy(asked, versions, original, sequences) == []
    del versions[keys[20]]
    assert lost_at_copy(asked, versions, original, sequences) == [*keys[:10], keys[20]], "it has said all"
    versions[keys[9]] = 1, 0
    assert lost_at_copy(asked, versions, original, sequences) == [keys[20]], "it has older ones"
    assert weights_lost("west", keys).count("v0") == 3
