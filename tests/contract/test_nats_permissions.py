"""Each role with its own credentials on a real nats-server: what it needs works, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import psutil
import pytest
from cluster_jobs import ISSUER, SECONDS, SEEDS, lasting_credentials, prepare, refusal
from cut_files import cut_messages, damage_descriptions, damage_states, stream_folder
from e2e.harness.nats_server import EmbeddedServer
from nats.aio.client import RawCredentials
from tests.waiting import in_time, until_async, within
from whole_job import NatsInstallation, Workers, config_of, holds, job_of, until

from rljob_cli.backup.index import Index
from rljob_cli.backup.place import FolderPlace
from rljob_cli.backup.restore_on_cluster import restore_configured
from rljob_cli.backup.sources import back_up_configured
from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError, StoreFull, StoreUnavailable
from rljob_core.failures import Failure, Reason
from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    STEP_METRICS,
    EngineGone,
    EngineSignal,
    RoleFailed,
)
from rljob_core.ports import WORK_QUEUES, Channel
from rljob_core.spec import NatsSpec
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_operator.nats.credentials import STREAMS, JobKeys, operator_credentials, user_limits
from rljob_operator.nats.job_accounts import SUBSCRIPTIONS, job_accounts
from rljob_operator.nats.jwt import NkeyKind, credentials_file, public_key, seed_of, token
from rljob_operator.nats.permissions import REPORTS, Holder, Permissions
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_runtime.messaging.nats.answers import JetStreamError
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.queue import NatsQueue
from rljob_runtime.messaging.nats.store import TRAJECTORY_BYTES, NatsStore


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory):
    installation = NatsInstallation(tmp_path_factory.mktemp("nats"))
    asyncio.run(installation.server.start())
    yield installation
    asyncio.run(installation.server.kill())


@pytest.fixture
async def uid(installation: NatsInstallation) -> str:
    """A job whose streams are there."""
    uid = uuid4().hex
    await installation.create(uid)
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
        "read ledger", "read trajectories", "read rewards", "read versions", "read signals", "purge signals",
        "get ledger", "get trajectories", "get rewards", "get versions", "delete trajectories", "delete rewards",
        "last ledger", "last trajectories", "last rewards", "last versions", "count trajectories",
        "read progress", "get progress", "last progress", "list progress", "purge progress",
        "purge work", "take events", "read weights", "get weights", "last weights", "list weights",
        "read metrics", "get metrics", "last metrics",
    },
    Holder.ROLLOUT: {
        "write progress", "read progress", "get progress", "last progress", "delete progress",
        "write trajectories", "write chunk", "write end", "event of rollout", "signal engine.pod-0.ab12",
        "read versions", "get versions", "last versions",
        "take work", "get work", "last work", "delete work",
        "read weights", "get weights", "last weights",
    },
    Holder.REWARD: {
        "write rewards", "event of reward", "take trajectories", "count trajectories", "read trajectories",
        "get trajectories", "last trajectories",
    },
    Holder.TRAINER: {
        "event of trainer", "take training", "get training", "last training", "delete training",
        "read trajectories", "get trajectories", "last trajectories",
        "write weights", "read weights", "get weights", "last weights", "list weights", "purge weights",
    },
    Holder.TRACKER: {"read metrics", "get metrics", "last metrics"},
    Holder.READER: {
        "read ledger", "read trajectories", "read rewards", "read versions", "read metrics", "read signals",
        "get ledger", "get trajectories", "get rewards", "get versions", "get metrics", "depths",
        "last ledger", "last trajectories", "last rewards", "last versions", "last metrics",
        "read weights", "get weights", "last weights", "list weights", "list progress",
    },
    Holder.VIEWER: {
        "read ledger", "read trajectories", "read rewards", "read versions", "read metrics", "read signals",
        "get ledger", "get trajectories", "get rewards", "get versions", "get metrics", "depths",
        "last ledger", "last trajectories", "last rewards", "last versions", "last metrics",
        "list weights", "list progress",
    },
}  # fmt: skip


async def first(batches: AsyncIterator[object]) -> None:
    await anext(batches)
    await batches.aclose()  # type: ignore[attr-defined]


def operations(store: NatsStore) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that a store can do."""

    async def take(channel: Channel, suffix: str, name: str) -> None:
        queue = await store.queue(channel, suffix, name=name)
        # Only what is refused is known sooner.
        await queue.fetch(messages=1, max_bytes=1 << 20, timeout=1.0)
        if isinstance(queue, NatsQueue):  # its requests have no answers of which it hears
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{store._streams.stream(channel)}.{name}"
            await store._connection.retried(
                partial(store._connection.request, subject, b'{"batch":1,"no_wait":true}')
            )
        else:  # it reads by requests of this kind, whose refusal may come after that second
            await store.get(channel, [999])

    async def get(channel: Channel) -> None:
        await store.get(channel, [999])
        await store.newest(channel, ["no.such.suffix"])

    known: dict[str, Callable[[], Awaitable[object]]] = {"depths": store.depths}
    for channel in Channel:
        if channel in _SUFFIXES:
            known[f"write {channel}"] = lambda c=channel: store.publish(c, _SUFFIXES[c], b"x")
        if channel not in WORK_QUEUES:
            known[f"read {channel}"] = lambda c=channel: first(store.read(c))
        known[f"get {channel}"] = lambda c=channel: get(c)
        known[f"last {channel}"] = lambda c=channel: store.last(c)
        known[f"delete {channel}"] = lambda c=channel: store.delete(c, [999])
        known[f"purge {channel}"] = lambda c=channel: store.purge(c, "engine.none.ab12")
    for what, suffix in {"chunk": "chunk.a1b2.0", "end": "drained"}.items():
        known[f"write {what}"] = lambda s=suffix: store.publish(Channel.TRAJECTORIES, s, b"x")
    for role in ("coordinator", "rollout", "reward", "trainer"):
        event = COORDINATOR_EVENT.dump_json(RoleFailed(role, Failure(Reason.UNKNOWN, "no")))
        known[f"event of {role}"] = lambda r=role, e=event: store.publish(Channel.EVENTS, r, e)
    for key in ("coordinator", "engine.pod-0.ab12"):
        known[f"signal {key}"] = lambda k=key: store.put_signal(k, b"x")
    for name, (channel, _, queue) in _QUEUES.items():
        known[name.replace("take", "count")] = lambda c=channel, q=queue: store.unacknowledged(c, q)
    known["read signals"] = lambda: first(store.watch_signals())
    known["purge signals"] = lambda: store.purge_signals("engine.none.ab12")
    known["list progress"] = lambda: store.suffixes(Channel.PROGRESS, ">")
    known["list weights"] = lambda: store.suffixes(Channel.WEIGHTS, ">")
    for name, queue in _QUEUES.items():
        known[name] = lambda q=queue: take(*q)
    return known


@pytest.fixture
async def filled(installation: NatsInstallation, uid: str) -> str:
    """A job with something in each stream."""
    for holder, names in {
        Holder.COORDINATOR: ["write ledger", "write versions", "write metrics", "signal coordinator"],
        Holder.ROLLOUT: ["write trajectories", "write progress"],
        Holder.REWARD: ["write rewards"],
        Holder.TRAINER: ["write weights"],
    }.items():
        async with installation.opened(holder, uid) as store:
            for name in names:
                await operations(store)[name]()
    return uid


@pytest.mark.parametrize("holder", ALLOWED)
async def test_a_role_can_do_what_it_needs_and_nothing_else(
    installation: NatsInstallation, filled: str, holder: Holder
) -> None:
    refused, done = {}, set()
    async with installation.opened(holder, filled) as store:
        for name, operation in operations(store).items():
            try:
                await in_time(operation())
                done.add(name)
            except StoreUnavailable as error:
                refused[name] = str(error)
    assert done == ALLOWED[holder]
    assert all("permissions violation" in reason for reason in refused.values()), refused


@pytest.mark.parametrize("holder", ALLOWED)
async def test_another_jobs_streams_are_out_of_reach(
    installation: NatsInstallation, filled: str, holder: Holder
) -> None:
    mine = uuid4().hex
    await installation.create(mine)
    async with installation.opened(holder, mine, of=filled) as store:
        for operation in operations(store).values():
            with pytest.raises(StoreUnavailable, match="permissions violation"):
                await in_time(operation())


_ADMINISTRATION = (
    "STREAM.CREATE.{ledger}", "STREAM.UPDATE.{ledger}", "STREAM.DELETE.{ledger}", "STREAM.PURGE.{ledger}",
    "STREAM.UPDATE.{trajectories}",
    "STREAM.MSG.DELETE.{ledger}", "STREAM.SNAPSHOT.{ledger}",
    "STREAM.RESTORE.{ledger}", "STREAM.NAMES", "STREAM.LIST", "INFO", "CONSUMER.LIST.{training}",
    "CONSUMER.NAMES.{training}", "CONSUMER.CREATE.{ledger}", "CONSUMER.CREATE.{trajectories}.x",
    "CONSUMER.DURABLE.CREATE.{trajectories}.x",
    "CONSUMER.PAUSE.{trajectories}.reward",
)  # fmt: skip


@pytest.mark.parametrize("holder", ALLOWED)
async def test_no_role_may_administer(installation: NatsInstallation, uid: str, holder: Holder) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=uid)
    streams = {channel.value: names.stream(channel) for channel in Channel}
    async with installation.connection(
        installation.credentials(holder, uid), inbox_of(uid, holder)
    ) as connection:
        for request in _ADMINISTRATION:
            with pytest.raises(JetStreamError, match="permissions violation"):
                await connection.request(f"$JS.API.{request.format(**streams)}", b"{}")


_WRITTEN = [
    *(
        (holder, channel)
        for holder, allowed in ALLOWED.items()
        for channel in Channel
        if f"write {channel}" in allowed
    ),
    *((holder, Channel.EVENTS) for holder, allowed in ALLOWED.items() if f"event of {holder}" in allowed),
]


@pytest.mark.parametrize("rollup", ["all", "sub"])
@pytest.mark.parametrize(("holder", "channel"), [one for one in _WRITTEN if one[1] is not Channel.WEIGHTS])
async def test_no_role_replaces_what_is_stored_by_a_rollup(
    installation: NatsInstallation, filled: str, holder: Holder, channel: Channel, rollup: str
) -> None:
    suffix = holder.value if channel is Channel.EVENTS else _SUFFIXES[channel]
    names = StreamNames.of_job(namespace="default", job="roles", uid=filled)
    async with installation.opened(holder, filled) as store:
        await store.publish(channel, suffix, b"kept")
        before = await state(installation, names, filled)
        with pytest.raises(Exception, match="rollup not permitted"):
            await store.publish(channel, suffix, b"x", headers={"Nats-Rollup": rollup})
        assert await state(installation, names, filled) == before


def test_who_may_replace_weights_may_purge_them() -> None:
    """Sites hear of a message that replaces others, and of no purge."""
    writers = [holder for holder, channel in _WRITTEN if channel is Channel.WEIGHTS]
    assert writers
    assert all(f"purge {Channel.WEIGHTS}" in ALLOWED[holder] for holder in writers)


@pytest.mark.parametrize("holder", [holder for holder in ALLOWED if holder is not Holder.REWARD])
async def test_only_who_takes_from_a_queue_may_remove_it(
    installation: NatsInstallation, uid: str, holder: Holder
) -> None:
    queue = (
        f"{StreamNames.of_job(namespace='default', job='roles', uid=uid).stream(Channel.TRAJECTORIES)}.reward"
    )
    async with installation.connection(
        installation.credentials(holder, uid), inbox_of(uid, holder)
    ) as connection:
        with pytest.raises(JetStreamError, match="permissions violation"):
            await connection.request(f"$JS.API.CONSUMER.DELETE.{queue}", b"{}")


async def test_a_role_cannot_listen_to_anothers_answers(installation: NatsInstallation, uid: str) -> None:
    credentials = installation.credentials(Holder.ROLLOUT, uid)
    async with installation.connection(credentials, inbox_of(uid, Holder.COORDINATOR)) as connection:
        with pytest.raises(Exception):  # noqa: B017, PT011  no answer ever comes
            await asyncio.wait_for(
                connection.request(f"$KV.RLJOB_default_roles_{uid}_signals.engine.a", b"x"), 1
            )


async def test_nobody_gets_in_without_credentials_or_with_those_of_another_installation(
    installation: NatsInstallation, uid: str, tmp_path: Path
) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=uid)
    foreign = tmp_path / "foreign.creds"
    foreign.write_text(
        lasting_credentials(
            issuer(Seeds.complete({}, os.urandom)), Holder.READER, namespace="default", job="roles", uid=uid
        )
    )
    for credentials in (None, str(foreign)):
        store = NatsStore(
            installation.server.url,
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
    installation: NatsInstallation, filled: str, question: tuple[Holder, str, bytes], reply: str
) -> None:
    """Permissions do not cover reply subjects: with one account, most of these change or delete the ledger."""
    holder, asked, body = question
    names = StreamNames.of_job(namespace="default", job="roles", uid=filled)
    place = {"subject": names.subject, "prefix": names.prefix}
    async with (
        installation.opened(Holder.ROLLOUT, filled) as rollout,
        installation.opened(Holder.REWARD, filled) as reward,
    ):
        await rollout.publish(Channel.TRAJECTORIES, "payload", b"{}")
        await reward.queue(Channel.TRAJECTORIES, "payload", name="reward")
    async with (
        installation.opened(Holder.READER, filled) as reader,
        installation.connection(
            installation.credentials(holder, filled), inbox_of(filled, holder)
        ) as connection,
    ):
        before = await reader.depths()
        connection.send(asked.format(**place), body, reply.format(**place))
        await asyncio.sleep(0.15)
        after = await reader.depths()
        assert {**after, "trajectories": 0} == {**before, "trajectories": 0}
        signals = [key async for key, value in _some(reader.watch_signals()) if value == b"x"]
        assert signals == ["coordinator"]


#: The queues that the operator has created, and who takes from them.
SHARED = {
    (Channel.TRAJECTORIES, "reward"): Holder.REWARD,
    (Channel.EVENTS, "coordinator"): Holder.COORDINATOR,
}


@pytest.fixture
async def queued(installation: NatsInstallation, filled: str) -> str:
    """A job with a message that waits in each queue."""
    async with installation.opened(Holder.COORDINATOR, filled) as store:
        await store.publish(Channel.WORK, "engine.pod-0.ab12", b"x")
        await store.publish(Channel.TRAINING, "trainer.1", b"x")
        await store.publish(Channel.EVENTS, "coordinator", b"x")
    return filled


async def state(
    installation: NatsInstallation, names: StreamNames, uid: str
) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """Of each stream, how many messages it has; and its consumers, with what they have delivered."""
    found = {}
    async with installation.operating() as job_streams, job_streams.client(job_of(uid)) as client:
        for stream in names.all_streams:
            info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", b"{}", timeout=60)).data)
            consumers = []
            for name in (queue for channel, queue in SHARED if names.stream(channel) == stream):
                answer = await client.request(f"$JS.API.CONSUMER.INFO.{stream}.{name}", b"{}", timeout=60)
                consumers.append(json.loads(answer.data))
            assert info["state"]["consumer_count"] == len(consumers), stream
            found[stream] = (
                info["state"]["messages"],
                [
                    {key: c[key] for key in ("config", "delivered", "ack_floor", "num_pending")}
                    for c in consumers
                ],
            )
    return found


def attacks_by_consumers(names: StreamNames, uid: str, holder: Holder) -> Iterator[tuple[str, bytes]]:
    """Requests that create, change, delete, pause or reset a consumer of each stream, of each kind."""
    queue = f"{names.stream(Channel.TRAJECTORIES)}.reward"
    places = (
        "",
        f"$JS.API.CONSUMER.MSG.NEXT.{queue}",
        f"{names.subject}.ledger.records",
        inbox_of(uid, holder),
    )
    subjects = {names.stream(channel): names.subject_of(channel, ">") for channel in Channel}
    for stream, subject in (subjects | {names.signal_stream: f"{names.signal_subject}>"}).items():
        for name, place in zip(("pulled", "pushed", "reward", "coordinator"), places, strict=True):
            config = {
                "filter_subject": subject,
                "ack_policy": "explicit",
                "ack_wait": 1_000_000,
                "name": name,
                **({"deliver_subject": place} if place else {}),
            }
            for action in ("", "create", "update"):
                body = json.dumps({"stream_name": stream, "config": config, "action": action}).encode()
                for request in (
                    f"CREATE.{stream}",
                    f"CREATE.{stream}.{name}",
                    f"CREATE.{stream}.{name}.{subject}",
                    f"DURABLE.CREATE.{stream}.{name}",
                ):
                    yield request, body
        for name in ("reward", "coordinator"):
            pause = b'{"pause_until":"2200-01-01T00:00:00Z"}'
            yield from (
                (f"{request}.{stream}.{name}", pause)
                for request in ("DELETE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN")
            )
        yield f"LIST.{stream}", b"{}"
        yield f"NAMES.{stream}", b"{}"


@pytest.mark.parametrize("holder", ALLOWED)
async def test_no_role_touches_a_consumer(
    installation: NatsInstallation, queued: str, holder: Holder
) -> None:
    """Whoever creates a consumer chooses where its messages go: one request after another, which drains a queue."""
    names = StreamNames.of_job(namespace="default", job="roles", uid=queued)
    before = await state(installation, names, queued)
    async with installation.connection(
        installation.credentials(holder, queued), inbox_of(queued, holder)
    ) as connection:
        for request, body in attacks_by_consumers(names, queued, holder):
            with pytest.raises(JetStreamError, match="permissions violation"):
                await connection.request(f"$JS.API.CONSUMER.{request}", body)
    assert await state(installation, names, queued) == before


@pytest.mark.parametrize("holder", ALLOWED)
async def test_no_role_takes_from_anothers_queue_or_acknowledges_for_it(
    installation: NatsInstallation, queued: str, holder: Holder
) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=queued)
    async with installation.connection(
        installation.credentials(holder, queued), inbox_of(queued, holder)
    ) as connection:
        for (channel, name), taker in SHARED.items():
            queue = f"{names.stream(channel)}.{name}"
            async with installation.opened(taker, queued) as store:
                taking = await store.queue(channel, ">", name=name)
                (taken,) = await taking.fetch(messages=1, max_bytes=1 << 20, timeout=SECONDS)
                held = partial(store._connection.call, f"CONSUMER.INFO.{queue}", {})
                assert (await held())["num_ack_pending"] == 1
                if taker is holder:
                    continue
                for subject, body in (
                    (f"$JS.API.CONSUMER.MSG.NEXT.{queue}", b'{"batch":1}'),
                    (taken._reply, b"+ACK"),
                    (taken._reply, b"+TERM"),
                    (taken._reply, b"-NAK"),
                    (taken._reply, b"+NXT"),
                ):
                    with pytest.raises(JetStreamError, match="permissions violation"):
                        await connection.request(subject, body)
                assert (await held())["num_ack_pending"] == 1
        own = {Holder.ROLLOUT: Channel.WORK, Holder.TRAINER: Channel.TRAINING}
        for channel in set(own.values()) - {own.get(holder)}:
            stream = names.stream(channel)
            for request in ("DIRECT.GET", "STREAM.MSG.GET", "STREAM.MSG.DELETE"):
                with pytest.raises(JetStreamError, match="permissions violation"):
                    await connection.request(f"$JS.API.{request}.{stream}", b'{"seq":2}')


@pytest.mark.parametrize(
    ("holder", "name"), [(Holder.ROLLOUT, "take work"), (Holder.TRAINER, "take training")]
)
async def test_work_that_its_reader_has_acknowledged_is_gone(
    installation: NatsInstallation, queued: str, holder: Holder, name: str
) -> None:
    channel, suffix, queue = _QUEUES[name]
    async with installation.opened(holder, queued) as store, within():
        taking = await store.queue(channel, suffix, name=queue)
        (taken,) = await taking.fetch(messages=1, max_bytes=1 << 20, timeout=SECONDS)
        assert await store.get(channel, [taken.message.sequence]) == [taken.message]
        await taken.ack()
        while await store.get(channel, [taken.message.sequence]) != [None]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _some(batches):
    """The first, whenever it comes, and what comes with it."""
    yield await in_time(anext(batches))
    with suppress(TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(batches), 0.1)
    await batches.aclose()


# ------------------------------------------------------------------------------- streams that reach elsewhere

OTHERS = {
    "sources": {"sources": [{"name": "{stream}"}]},
    "mirror": {"mirror": {"name": "{stream}"}},
    "another's subjects": {"subjects": ["{subject}.>"]},
    "all subjects of jobs": {"subjects": ["rljob.>"]},
    "answers of services": {"subjects": ["_R_.>"], "no_ack": True},
    "answers": {"subjects": ["_INBOX.>"], "no_ack": True},
    "requests": {"subjects": ["$JS.API.>"], "no_ack": True},
    "figures": {"subjects": ["report.>", "rljob.reports.>"]},
    "into its ledger": {"subjects": ["own.>"], "republish": {"src": "own.>", "dest": "{subject}.ledger.>"}},
    "into its deletion": {
        "subjects": ["own.>"],
        "republish": {"src": "own.*", "dest": "$JS.API.STREAM.DELETE.{{{{wildcard(1)}}}}"},
    },
}


def everything_allowed(keys: JobKeys) -> str:
    """Credentials that nobody has: all rights in the account of a job's streams."""
    seed, everything = seed_of(NkeyKind.USER, os.urandom(32)), Permissions((">",), (">",))
    claims = {"type": "user", "issuer_account": keys.account("streams"), **user_limits(everything)}
    jwt = token(name="all", subject=public_key(seed), issuer=keys.signing("streams"), claims=claims)
    return credentials_file(jwt, seed)


@pytest.mark.parametrize("name", OTHERS)
async def test_a_stream_of_any_configuration_reaches_no_other_job(
    installation: NatsInstallation, filled: str, name: str
) -> None:
    """Even if a tenant could create streams in its job's account, and do anything else there."""
    keys = JobKeys(ISSUER, "default", "thief", uuid4().hex)
    names = StreamNames.of_job(namespace="default", job="roles", uid=filled)
    places = {"stream": names.stream(Channel.TRAJECTORIES), "subject": names.subject}
    definition = {"name": "LOOT", "storage": "file", **_filled_in(OTHERS[name], places)}
    async with installation.operator() as operator, installation.opened(Holder.READER, filled) as reader:
        for jwt in job_accounts(keys, revision=1).tokens:
            assert b"jwt updated" in (await operator.request("$SYS.REQ.CLAIMS.UPDATE", jwt.encode())).data
        before = await reader.depths()
        async with installation.connection(everything_allowed(keys), "_INBOX") as thief:
            with suppress(JetStreamError):  # some are refused
                await thief.call("STREAM.CREATE.LOOT", definition)
            thief.send(f"own.{names.stream(Channel.LEDGER)}", b"x")
            async with installation.opened(Holder.ROLLOUT, filled) as rollout:
                await rollout.publish(Channel.TRAJECTORIES, "payload", b"secret")
            (message,) = await reader.get(Channel.TRAJECTORIES, [before["trajectories"] + 2])
            assert message is not None
            assert message.data == b"secret"
            with suppress(JetStreamError):
                found = await thief.call("STREAM.INFO.LOOT", {"subjects_filter": ">"})
                kept = found["state"].get("subjects", {})
                assert not [s for s in kept if filled in s and not s.startswith("own.")], kept
        after = await reader.depths()
        assert after == {**before, "trajectories": before["trajectories"] + 1}


def _filled_in(value: object, places: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled_in(part, places) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled_in(part, places) for part in value]
    return value.format(**places) if isinstance(value, str) else value


# ---------------------------------------------------------------------------------------------- whole jobs


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_whole_job_runs_on_its_roles_credentials(
    installation: NatsInstallation, tmp_path: Path
) -> None:
    """Through a restart of the server, an engine's death, and events that a role sends under another one's name.

    It is backed up meanwhile, with the credentials of the audit, and goes on as a job of another cluster.
    """
    uid = uuid4().hex
    tiny_model(tmp_path / "model")
    await installation.create(uid)
    config = config_of(tmp_path, uid)
    async with (
        Workers(installation, tmp_path, config) as workers,
        installation.opened(Holder.READER, uid, patience=100) as reader,
    ):
        training = asyncio.create_task(workers.train())
        try:
            async with within(600):
                await until(reader, lambda line: line.version >= 2)
                backup = FolderPlace(tmp_path / "backup")
                taken = await back_up_configured(config, backup, installation.environment(Holder.READER, uid))
                async with installation.opened(Holder.REWARD, uid) as reward:
                    for event in (
                        EngineGone("a-0"),
                        RoleFailed("trainer", Failure(Reason.UNKNOWN, "forged")),
                    ):
                        await reward.publish(Channel.EVENTS, "reward", COORDINATOR_EVENT.dump_json(event))
                refusal = "refused 1 of what events.reward sent: only rollout"
                await until_async(lambda: refusal in workers.logs())
                (engine,) = psutil.Process(workers.processes["a-1"].pid).children()
                engine.kill()
                assert await workers.processes["a-1"].wait() == 137  # once its death was reported
                await installation.server.kill()
                await installation.server.start()
                line = await until(reader, lambda line: bool(line.finished))
                await training
        except BaseException as error:
            training.cancel()
            error.add_note(workers.logs()[-20_000:])
            raise
        assert (line.finished, line.failure, line.version) == ("Succeeded", None, 6)
        assert line.trajectories["consumed"] == 48
        assert "died: exit code 137" in workers.logs()
        for trouble in ("permissions violation", "was not informed"):
            assert trouble not in workers.logs()
    assert taken.index.version >= 2
    await _goes_on_elsewhere(tmp_path / "elsewhere", backup, config, taken.index)


async def _goes_on_elsewhere(folder: Path, backup: FolderPlace, former: JobConfig, index: Index) -> None:
    """Restore a job into another installation, under another UID, and train it to its end."""
    installation, uid = NatsInstallation(folder, Seeds.complete({}, os.urandom)), uuid4().hex
    config = config_of(folder, uid)
    config = config.model_copy(update={"spec": former.spec})
    async with installation.server:
        await installation.create(uid, restorable=True)
        environment = installation.environment(Holder.RESTORER, uid)
        await restore_configured(backup, config, environment)
        reading = installation.environment(Holder.READER, uid)
        await holds(config, reading, versions=index.version)
        with pytest.raises(SpecError, match="the job roles has run, or a restore of it broke off"):
            await restore_configured(backup, config, environment)
        await installation.create(uid)
        with pytest.raises(StoreUnavailable):
            await installation.store(Holder.RESTORER, uid, patience=3.0, connect=3.0).open()
        async with installation.opened(Holder.READER, uid) as reader:
            line = STEP_METRICS.validate_json((await reader.last(Channel.METRICS)).data)
        async with Workers(installation, folder, config) as workers:
            await workers.train(after=line.trainer_attempt)
        await holds(config, reading, versions=6)


async def test_the_operator_reads_how_much_each_engine_has_to_do(
    installation: NatsInstallation, uid: str
) -> None:
    job = job_of(uid)
    assert await JobStreams(NatsConnection("nats://127.0.0.1:1"), ISSUER).engine_loads(job) == {}
    async with installation.operating() as job_streams, installation.opened(Holder.ROLLOUT, uid) as engines:
        assert await job_streams.engine_loads(job) == {}
        for pod, load in (("a-0", 3), ("b-1", 0)):
            signal = EngineSignal(f"{pod}.1f", "cpu", 1, 1, load, 8, load, 1, 0)
            await engines.put_signal(f"{ENGINE_SIGNALS}{pod}.1f", ENGINE_SIGNAL.dump_json(signal))
        assert await job_streams.engine_loads(job) == {"a-0": 4, "b-1": 1}


async def test_the_operator_lets_a_stream_grow_that_no_role_of_the_job_may_touch(
    installation: NatsInstallation, uid: str
) -> None:
    job, wanted = job_of(uid), 5 << 30
    assert not await JobStreams(NatsConnection(installation.server.url), ISSUER).prepare(job, wanted), (
        "not connected"
    )
    async with (
        installation.operating() as job_streams,
        installation.opened(Holder.COORDINATOR, uid) as coordinator,
    ):
        with pytest.raises(StoreFull, match="4096 MB so far"):
            await coordinator.grow(Channel.TRAJECTORIES, wanted)
        assert not await job_streams.prepare(job, 2 << 40), "the server has 1 TB"
        with pytest.raises(StoreFull):
            await coordinator.grow(Channel.TRAJECTORIES, wanted)
        await prepare(job_streams, job, wanted)
        await coordinator.grow(Channel.TRAJECTORIES, wanted)
        await prepare(job_streams, job, wanted - 1)  # it is large enough
        await coordinator.grow(Channel.TRAJECTORIES, wanted)  # and has not shrunk


async def test_a_role_waits_for_the_queue_that_the_operator_creates(
    installation: NatsInstallation, uid: str
) -> None:
    names = StreamNames.of_job(namespace="default", job="roles", uid=uid)
    deletion = f"$JS.API.CONSUMER.DELETE.{names.stream(Channel.TRAJECTORIES)}.reward"
    async with (
        installation.operating() as job_streams,
        installation.opened(Holder.ROLLOUT, uid) as rollout,
        installation.opened(Holder.REWARD, uid) as reward,
    ):
        queue = await reward.queue(Channel.TRAJECTORIES, "payload", name="reward")
        async with job_streams.client(job_of(uid)) as client:
            assert b'"success":true' in (await client.request(deletion, b"{}", timeout=60)).data
        fetching = asyncio.create_task(queue.fetch(messages=1, max_bytes=1 << 20, timeout=SECONDS))
        opening = asyncio.create_task(reward.queue(Channel.TRAJECTORIES, "payload", name="reward"))
        await rollout.publish(Channel.TRAJECTORIES, "payload", b"x")
        await asyncio.sleep(0.5)
        assert not opening.done()
        assert not fetching.done()
        await prepare(job_streams, job_of(uid), TRAJECTORY_BYTES)
        await opening
        assert [delivery.message.data for delivery in await fetching] == [b"x"]


@pytest.fixture
async def own_installation(tmp_path: Path) -> AsyncIterator[NatsInstallation]:
    """An installation whose server may die."""
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    yield installation
    await installation.server.kill()


@pytest.mark.parametrize(
    "damage",
    [partial(damage_descriptions, stream=False, queues=True), damage_states],
    ids=["description", "state"],
)
async def test_the_operator_creates_a_queue_without_the_state_of_the_one_before_it(
    own_installation: NatsInstallation, damage: Callable[[Path], None]
) -> None:
    """A power cut has damaged its description, and its state is ahead of the stream that lost its end; or its state."""
    uid = uuid4().hex
    await own_installation.create(uid)
    async with (
        own_installation.opened(Holder.ROLLOUT, uid) as rollout,
        own_installation.opened(Holder.REWARD, uid) as reward,
    ):
        queue = await reward.queue(Channel.TRAJECTORIES, "payload", name="reward")
        taken: set[str] = set()

        async def store_and_take(*names: str) -> None:
            for name in names:
                await rollout.publish(Channel.TRAJECTORIES, "payload", name.encode())
            async with within():
                while not set(names) <= taken:
                    for delivery in await queue.fetch(messages=8, max_bytes=1 << 20, timeout=1.0):
                        taken.add(delivery.message.data.decode())
                        await delivery.ack()

        await store_and_take(*(f"old{number}" for number in range(8)))
        while await reward.unacknowledged(Channel.TRAJECTORIES, "reward"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # its state is written down a while after it has changed
        await own_installation.server.kill()
        folder = stream_folder(own_installation.folder, "trajectories")
        cut_messages(folder, 5)
        damage(folder)
        await own_installation.server.start()
        await own_installation.create(uid)
        await store_and_take("new0", "new1")


async def test_a_job_that_the_server_has_no_room_for_says_so(installation: NatsInstallation) -> None:
    job = job_of(uuid4().hex)
    async with installation.operating() as job_streams:
        assert job_streams.trouble(job) is None
        message = await refusal(job_streams, job, 2 << 40)
        assert "the job needs 3299 GB to begin" in message
        assert "raise RLJOB_NATS_JOB_GB of the operator" in message
        await prepare(job_streams, job, 1 << 30)  # once it has
        assert job_streams.trouble(job) is None


async def test_one_server_keeps_one_replica_and_refuses_more(installation: NatsInstallation) -> None:
    silent = job_of(uuid4().hex)
    asking = silent.model_copy(update={"spec": silent.spec.model_copy(update={"nats": NatsSpec(replicas=3)})})
    async with installation.operating() as job_streams:
        message = await refusal(job_streams, asking, 1 << 30)
        assert "spec.nats.replicas: 3 replicas need as many NATS servers, and there is one: " in message
        await prepare(job_streams, silent, 1 << 30)
        assert job_streams.trouble(silent) is None
    lone = EmbeddedServer(installation.folder / "open")
    async with lone:
        store = NatsStore(lone.url, subject="rljob.j", stream_prefix="RLJOB_j", replicas=3)
        with pytest.raises(
            StoreUnavailable, match=r"cannot have 3 replicas: .* leave spec\.nats\.replicas out"
        ):
            await store.open()
        await store.close()


async def test_the_operator_hears_of_each_job_under_the_name_of_its_account(
    installation: NatsInstallation, uid: str
) -> None:
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with (
        installation.operator() as operator,
        installation.opened(Holder.COORDINATOR, uid) as coordinator,
    ):
        await operator._client.listen(f"{REPORTS}.*.>", lambda m: heard.put_nowait((m.subject, m.data)))
        await operator._client.flush()
        await coordinator.publish(Channel.METRICS, "steps", b"{}")
        account = JobKeys.of(job_of(uid), ISSUER).account(STREAMS)
        assert await in_time(heard.get()) == (f"{REPORTS}.{account}.steps", b"{}")


async def test_a_job_that_is_removed_leaves_no_stream_and_no_way_in(
    installation: NatsInstallation, uid: str
) -> None:
    async with (
        installation.operating() as job_streams,
        installation.opened(Holder.COORDINATOR, uid) as coordinator,
    ):
        await coordinator.publish(Channel.METRICS, "steps", b"{}")
        await job_streams.remove(job_of(uid))
        with pytest.raises(StoreUnavailable):
            await installation.store(Holder.READER, uid, patience=1).open()
        await job_streams.remove(job_of(uid))  # a pass that was cut off comes again
    account = JobKeys.of(job_of(uid), ISSUER).account(STREAMS)
    kept = [path.name for path in installation.folder.rglob("*") if account in path.name]
    assert kept == [f"{account}.jwt.deleted"]


async def test_another_generation_ends_the_credentials_of_one_job_alone(
    installation: NatsInstallation, uid: str
) -> None:
    other = uuid4().hex
    await installation.create(other)
    job = job_of(uid)
    spec = job.spec.model_copy(update={"nats": NatsSpec(credentials_generation=1)})
    revoked = job.model_copy(
        update={"spec": spec, "metadata": job.metadata.model_copy(update={"generation": 1})}
    )
    async with (
        installation.operating() as job_streams,
        installation.opened(Holder.COORDINATOR, uid, patience=2, connect=20.0) as old,
        installation.opened(Holder.COORDINATOR, other) as beside,
    ):
        await old.publish(Channel.METRICS, "steps", b"{}")
        await prepare(job_streams, revoked, TRAJECTORY_BYTES)
        with pytest.raises(StoreUnavailable):
            await old.publish(Channel.METRICS, "steps", b"{}")
        with pytest.raises(StoreUnavailable, match="Authorization"):
            await installation.store(Holder.READER, uid, patience=8).open()
        async with installation.opened(Holder.COORDINATOR, uid, generation=1) as new:
            assert await new.publish(Channel.METRICS, "steps", b"{}") == 2, "the stream has stayed"
        await beside.publish(Channel.METRICS, "steps", b"{}")


@pytest.mark.parametrize("kept", [True, False], ids=["with the seeds", "with what the operator has"])
async def test_another_signing_key_ends_all_credentials_and_no_stream(tmp_path: Path, kept: bool) -> None:
    uid = uuid4().hex
    before = NatsInstallation(tmp_path)
    await before.server.start()
    await before.create(uid)
    async with before.opened(Holder.COORDINATOR, uid) as coordinator:
        await coordinator.publish(Channel.METRICS, "steps", b"{}")
    await before.server.kill()
    known = {name: getattr(SEEDS, name) for name in Seeds.__slots__ if name != "signing"}
    if not kept:
        known = {"accounts": ISSUER.accounts_seed, "system": ISSUER.system_account}
    after = NatsInstallation(tmp_path, Seeds.complete(known, os.urandom))
    await after.server.start()
    try:
        await after.create(uid)
        async with after.opened(Holder.READER, uid) as reader:
            assert (await reader.depths())["metrics"] == 1
        for credentials in (before.credentials(Holder.READER, uid), operator_credentials(before.issuer)):
            with pytest.raises(StoreUnavailable, match="no nats-server answers"):
                await Connection(after.server.url, patience=1, attempt=1, credentials=credentials).open()
    finally:
        await after.server.kill()


async def test_accounts_outlive_the_server(own_installation: NatsInstallation) -> None:
    uid = uuid4().hex
    await own_installation.create(uid)
    await own_installation.server.kill()
    await own_installation.server.start()
    async with own_installation.opened(Holder.COORDINATOR, uid) as coordinator:
        assert await coordinator.publish(Channel.METRICS, "steps", b"{}") == 1


async def test_a_connection_of_a_role_has_its_own_number_of_subscriptions(
    installation: NatsInstallation, uid: str
) -> None:
    credentials = RawCredentials(installation.credentials(Holder.REWARD, uid))
    inbox = inbox_of(uid, Holder.REWARD)
    client = await nats.connect(installation.server.url, user_credentials=credentials, allow_reconnect=False)
    for number in range(SUBSCRIPTIONS):
        await client.subscribe(f"{inbox}.{number}")
    await client.flush()
    assert client.is_connected
    await client.subscribe(f"{inbox}.more")
    await until_async(lambda: client.is_closed)


async def test_a_job_has_its_own_number_of_connections(installation: NatsInstallation, uid: str) -> None:
    other = uuid4().hex
    await installation.create(other)
    keys = JobKeys(installation.issuer, "default", "roles", uid)
    async with installation.operator() as operator:
        for jwt in job_accounts(keys, revision=1 << 20, connections=2).tokens:
            assert b'"code":200' in (await operator.request("$SYS.REQ.CLAIMS.UPDATE", jwt.encode())).data
    async with installation.opened(Holder.REWARD, uid), installation.opened(Holder.ROLLOUT, uid):
        with pytest.raises(StoreUnavailable):
            await installation.store(Holder.TRAINER, uid, patience=2).open()
        async with installation.opened(Holder.TRAINER, other) as store:
            await store.publish(Channel.WEIGHTS, "chunk.v1", b"x")
