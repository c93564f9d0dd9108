"""A job's accounts on the hub's server and on a site's: what crosses their borders, and what a site is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from border_servers import SITE, BorderServers, api, client, names_of
from e2e.harness.nats_sites import HubAndSite
from nats.aio.client import Client
from raw_leaf import RawLeaf
from tests.waiting import within

from rljob_core.messages import work_suffix
from rljob_core.ports import Channel
from rljob_core.spec import HUB
from rljob_core.stream_names import StreamNames, stored_subject
from rljob_operator.nats.credentials import job_token, secret_credentials, stream_credentials
from rljob_operator.nats.permissions import Holder
from rljob_runtime.messaging.nats.leafnodes import site_user

OTHER = "west"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[BorderServers]:
    async with BorderServers(tmp_path) as found:
        yield found


async def count(client: Client, stream: str) -> int:
    return int((await api(client, f"STREAM.INFO.{stream}", {}))["state"]["messages"])


async def holds(client: Client, stream: str, number: int) -> None:
    async with within():
        while await count(client, stream) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def publish(client: Client, subject: str) -> None:
    await client.jetstream().publish(subject, b"x" * 500, timeout=30)


async def test_the_streams_of_jobs_with_accounts_are_joined_without_a_restart(servers: BorderServers) -> None:
    await servers.create("u-1")
    await servers.join("u-1")
    await crosses(servers, "u-1")
    # Another job, while the first one runs.
    await servers.create("u-1", "u-2")
    await servers.join("u-2")
    await crosses(servers, "u-2")
    await crosses(servers, "u-1", before=1)


async def crosses(servers: BorderServers, uid: str, *, before: int = 0) -> None:
    names = names_of(uid)
    stream, after = names.stream, before + 1
    async with servers.streams(uid, at_site=False) as hub, servers.streams(uid, at_site=True) as site:
        for _ in range(300):
            await publish(site, names.subject_of(Channel.EVENTS, "rollout"))
        await publish(site, names.subject_of(Channel.TRAJECTORIES, "payload"))
        await publish(hub, names.subject_of(Channel.VERSIONS, "policy"))
        await publish(hub, names.subject_of(Channel.WORK, work_suffix("pod-0.a", site=SITE)))
        await holds(hub, stream(Channel.TRAJECTORIES), after)
        await holds(hub, stream(Channel.EVENTS), 300 * after)
        await holds(site, stream(Channel.EVENTS), 0)
        await holds(site, stream(Channel.VERSIONS), 1)
        await holds(site, stream(Channel.WORK), after)
        await holds(hub, stream(Channel.WORK), 0)


async def test_a_coordinator_beats_by_way_of_a_site(servers: BorderServers) -> None:
    await servers.create("u-1")
    await servers.join("u-1")
    keys, names = servers.keys("u-1", at_site=False), names_of("u-1")
    lines = secret_credentials(keys, Holder.COORDINATOR).splitlines()
    lines[1] = job_token(keys, Holder.COORDINATOR)
    text = "\n".join(lines[:8]) + "\n"
    async with (
        client(servers.hub, text) as coordinator,
        servers.streams("u-1", at_site=False) as hub,
        within(),
    ):
        while not await count(hub, names.signal_stream):
            await coordinator.publish(names.beat_subject(SITE), b"coordinator-1")
            await coordinator.flush()
            await asyncio.sleep(0.1)


def requests_of(names: StreamNames) -> list[str]:
    """Subjects on which a site may send nothing to the hub, of the jobs that have pools there and of others."""
    trajectories, work = names.stream(Channel.TRAJECTORIES), names.stream(Channel.WORK)
    api = [
        *(f"STREAM.{request}.{trajectories}" for request in ("CREATE", "UPDATE", "DELETE", "PURGE", "INFO")),
        *(f"STREAM.MSG.{request}.{trajectories}" for request in ("GET", "DELETE")),
        *(f"STREAM.{request}.{trajectories}" for request in ("SNAPSHOT", "RESTORE", "LEADER.STEPDOWN")),
        "STREAM.NAMES",
        "STREAM.LIST",
        f"DIRECT.GET.{trajectories}",
        f"CONSUMER.CREATE.{trajectories}.mine",
        f"CONSUMER.DURABLE.CREATE.{trajectories}.mine",
        f"CONSUMER.DELETE.{trajectories}.reward",
        f"CONSUMER.INFO.{trajectories}.reward",
        f"CONSUMER.NAMES.{trajectories}",
        f"CONSUMER.PAUSE.{work}.{SITE}",
        f"CONSUMER.MSG.NEXT.{trajectories}.reward",
        f"CONSUMER.RESET.{trajectories}.reward",
        f"CONSUMER.RESET.{work}.{OTHER}",
        "INFO",
        "META.LEADER.STEPDOWN",
        "SERVER.REMOVE",
        "ACCOUNT.PURGE.ABC",
    ]
    return [
        *(f"$JS.{HUB}.API.{request}" for request in api),
        *(f"$JS.API.{request}" for request in api),
        *(names.subject_of(channel, "any") for channel in Channel),
        f"{names.signal_subject}coordinator",
        stored_subject(names.subject_of(Channel.LEDGER, "records")),
        f"to.{HUB}.{OTHER}.{trajectories}",
        f"to.{OTHER}.{work}",
        f"to.{SITE}.{work}",
        names.beat_subject(OTHER),
        f"$JS.FC.{work}.{OTHER}.abcd",
        f"$JS.FC.{trajectories}.hub-SERVER.abcd",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.ACCOUNT.PING.CONNZ",
        "$SYS.REQ.CLAIMS.UPDATE",
        "_INBOX.any",
        "report.any",
    ]


def readings_of(names: StreamNames) -> list[str]:
    """Subjects of the hub that a site may not hear."""
    return [
        f"{names.subject}.>",
        f"{names.signal_subject}>",
        stored_subject(f"{names.subject}.>"),
        f"to.{OTHER}.>",
        f"to.{HUB}.{SITE}.>",
        "_INBOX.>",
        "$JS.API.>",
        f"$JS.{HUB}.API.>",
        "$JS.ACK.>",
        "$JS.EVENT.>",
        "$SYS.>",
        ">",
    ]


def may_be_heard(subject: str) -> bool:
    """Whether the hub may send a subject to the site."""
    parts = subject.split(".")
    flow = parts[:2] == ["$JS", "FC"] and len(parts) == 5
    return flow or subject.startswith(
        (f"to.{SITE}.", f"$JS.{SITE}.API.CONSUMER.RESET.", "_R_.", "$JSC.R.", "$LDS.")
    )


def allowed_of(names: StreamNames) -> list[str]:
    return [
        f"to.{HUB}.{SITE}.{names.stream(Channel.TRAJECTORIES)}",
        f"$JS.FC.{names.stream(Channel.WORK)}.{SITE}.abcd",
        f"$JS.{HUB}.API.CONSUMER.RESET.{names.stream(Channel.WORK)}.{SITE}",
    ]


async def test_a_site_is_refused_every_request_but_its_own(servers: BorderServers) -> None:
    """By a leafnode that asks itself nothing, with the credentials of the site."""
    await servers.create("u-1")
    names, credentials = names_of("u-1"), servers.at_hub.leaf_credentials()
    for subject in requests_of(names):
        async with RawLeaf(servers.leaf_url, credentials=credentials) as leaf:
            assert "Permissions Violation" in await leaf.publish(subject, reply="_R_.any"), subject
    async with RawLeaf(servers.leaf_url, credentials=credentials) as leaf:
        for subject in allowed_of(names):
            assert await leaf.publish(subject) == "", subject


async def test_a_site_hears_of_a_job_what_is_for_it(servers: BorderServers) -> None:
    await servers.create("u-1")
    await servers.join("u-1")
    names = names_of("u-1")
    async with RawLeaf(servers.leaf_url, credentials=servers.at_hub.leaf_credentials()) as leaf:
        for subject in readings_of(names):
            await leaf.subscribe(subject)
        async with servers.streams("u-1", at_site=False) as hub, servers.streams("u-1", at_site=True) as site:
            for channel in (Channel.LEDGER, Channel.VERSIONS, Channel.METRICS, Channel.REWARDS):
                await publish(hub, names.subject_of(channel, "any"))
            await holds(site, names.stream(Channel.VERSIONS), 1)
        await leaf.flush()
        assert {subject for subject in leaf.heard if not may_be_heard(subject)} == set()


async def test_a_site_acknowledges_nothing_at_the_hub(servers: BorderServers) -> None:
    """The server lets acknowledgements of leafnodes pass; the border has nobody who takes them."""
    await servers.create("u-1")
    await servers.join("u-1")
    names = names_of("u-1")
    stream = names.stream(Channel.EVENTS)
    async with servers.streams("u-1", at_site=False) as hub:
        queue = {"name": "coordinator", "durable_name": "coordinator", "ack_policy": "explicit"}
        await api(hub, f"CONSUMER.CREATE.{stream}.coordinator", {"stream_name": stream, "config": queue})
        await publish(hub, names.subject_of(Channel.EVENTS, "rollout"))
        pull = await hub.subscribe("_INBOX.pull")
        await hub.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.coordinator", b"1", reply="_INBOX.pull")
        message = await pull.next_msg(timeout=30)
        async with RawLeaf(servers.leaf_url, credentials=servers.at_hub.leaf_credentials()) as leaf:
            await leaf.publish(message.reply, b"+ACK")
        info = await api(hub, f"CONSUMER.INFO.{stream}.coordinator", {})
        assert info["num_ack_pending"] == 1
        await message.respond(b"+ACK")
        await hub.flush()
        async with within():
            while (await api(hub, f"CONSUMER.INFO.{stream}.coordinator", {}))["num_ack_pending"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_site_reaches_no_job_without_a_pool_there(servers: BorderServers) -> None:
    await servers.create("u-1")
    await servers.join("u-1")
    names = names_of("u-1")
    async with servers.operator(at_site=False) as system:  # the job has no pool there any more
        token = servers.at_hub.border_token([], revision=5)
        await system.request("$SYS.REQ.CLAIMS.UPDATE", token.encode())
    async with RawLeaf(servers.leaf_url, credentials=servers.at_hub.leaf_credentials()) as leaf:
        subject = f"to.{HUB}.{SITE}.{names.stream(Channel.EVENTS)}"
        stored = names.subject_of(Channel.EVENTS, "rollout")
        reply = f"$JS.ACK.{names.stream(Channel.EVENTS)}.hub-SERVER.1.1.1.1.0@{stored}"
        assert await leaf.publish(subject, b"forged", reply=reply) == ""
    async with servers.streams("u-1", at_site=False) as hub:
        await asyncio.sleep(1.0)
        assert await count(hub, names.stream(Channel.EVENTS)) == 0


@pytest.mark.parametrize("wrong", ["no credentials", "those of another hub", "those of a job"])
async def test_a_leafnode_with_other_credentials_is_refused(servers: BorderServers, wrong: str) -> None:
    await servers.create("u-1")
    credentials = {
        "no credentials": "",
        "those of another hub": type(servers.at_hub)(servers.site_issuer, SITE).leaf_credentials(),
        "those of a job": stream_credentials(servers.keys("u-1", at_site=False)),
    }[wrong]
    with pytest.raises(ConnectionError, match=r"Authorization Violation|closed|reset"):
        async with RawLeaf(servers.leaf_url, credentials=credentials):
            pass


async def test_a_site_of_an_open_hub_is_refused_the_same(tmp_path: Path) -> None:
    async with HubAndSite(tmp_path, site=SITE) as open_servers:
        names = names_of("u-1")
        for subject in requests_of(names):
            async with RawLeaf(
                open_servers.leaf_url, user=site_user(SITE), password=open_servers.password
            ) as leaf:
                assert "Permissions Violation" in await leaf.publish(subject), subject
        async with RawLeaf(
            open_servers.leaf_url, user=site_user(SITE), password=open_servers.password
        ) as leaf:
            for subject in readings_of(names):
                await leaf.subscribe(subject)
            at_hub = await nats.connect(open_servers.hub.url)
            for subject in (*requests_of(names), *allowed_of(names)):
                await at_hub.publish(subject, b"x")
            await at_hub.flush()
            await leaf.flush()
            assert {subject for subject in leaf.heard if not may_be_heard(subject)} == set()
            await at_hub.close()
        async with RawLeaf(
            open_servers.leaf_url, user=site_user(SITE), password=open_servers.password
        ) as leaf:
            for subject in allowed_of(names):
                assert await leaf.publish(subject) == "", subject
