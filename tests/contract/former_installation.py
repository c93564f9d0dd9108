"""A NATS installation as the releases made it in which all jobs shared two accounts, and a job that ran there.

What is here is written down from those releases, so that it stays as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from rljob_core.ports import Channel
from rljob_core.records import EpochClaimed
from rljob_core.stream_names import StreamNames
from rljob_operator.nats.jwt import NkeyKind, credentials_file, derived_seed, public_key, seed_of, token
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.store import NatsStore

_UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {
    "wildcards": True
}
_JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
_WORK_QUEUES = {Channel.WORK, Channel.TRAINING, Channel.EVENTS}
_NEWEST_ONLY = {Channel.VERSIONS, Channel.PROGRESS}
_PATIENCE = 5.0
SECONDS = 300.0


def former_seeds() -> dict[str, str]:
    """The content of `seeds.json`."""
    kinds = dict.fromkeys(("system", "streams", "roles", "signing"), NkeyKind.ACCOUNT)
    return {
        name: seed_of(kind, os.urandom(32))
        for name, kind in ({"operator": NkeyKind.OPERATOR} | kinds).items()
    }


def former_config(seeds: Mapping[str, str]) -> str:
    """`accounts.conf`: three accounts that the server has from its configuration."""
    signing = {"signing_keys": [public_key(seeds["signing"])]}
    services = ["rljob.>", "$KV.>", "$JS.ACK.>", "$JS.API.>"]
    claims: dict[str, dict[str, Any]] = {
        "system": {"limits": _UNLIMITED},
        "streams": {
            "limits": _UNLIMITED | _JETSTREAM,
            "exports": [
                {"name": s, "subject": s, "type": "service", "response_type": "Singleton"} for s in services
            ],
            **signing,
        },
        "roles": {
            "limits": _UNLIMITED,
            "imports": [
                {"name": s, "subject": s, "account": public_key(seeds["streams"]), "type": "service"}
                for s in services
            ],
            **signing,
        },
    }
    accounts = {
        public_key(seeds[name]): token(
            name=name,
            subject=public_key(seeds[name]),
            issuer=seeds["operator"],
            claims={"type": "account", "default_permissions": {"pub": {}, "sub": {}}, **what},
        )
        for name, what in claims.items()
    }
    system = public_key(seeds["system"])
    operator = token(
        name="rljob",
        subject=public_key(seeds["operator"]),
        issuer=seeds["operator"],
        claims={"type": "operator", "system_account": system},
    )
    preload = "".join(f"  {key}: {json.dumps(jwt)}\n" for key, jwt in accounts.items())
    return (
        f"operator: {json.dumps(operator)}\nsystem_account: {system}\n"
        f"resolver: MEMORY\nresolver_preload {{\n{preload}}}\n"
    )


def former_user(seeds: Mapping[str, str], account: str) -> str:
    """The credentials of a user who may do everything in one of the accounts."""
    seed = derived_seed(NkeyKind.USER, seeds["signing"], account)
    claims = {
        "type": "user",
        "issuer_account": public_key(seeds[account]),
        "pub": {},
        "sub": {},
        **dict.fromkeys(("subs", "data", "payload"), -1),
    }
    jwt = token(name=account, subject=public_key(seed), issuer=seeds["signing"], claims=claims)
    return credentials_file(jwt, seed)


def _former_streams(names: StreamNames) -> list[dict[str, Any]]:
    """Streams as a job's coordinator created them."""
    common = {
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "duplicate_window": 300 * 10**9,
        "num_replicas": 1,
        "allow_direct": True,
    }
    found: list[dict[str, Any]] = []
    for channel in Channel:
        stream: dict[str, Any] = {
            "name": names.stream(channel),
            "subjects": [names.subject_of(channel, ">")],
            **common,
            "first_seq": 2 if channel in _WORK_QUEUES | {Channel.TRAJECTORIES} else 1,
        }
        if channel in _WORK_QUEUES:
            stream["retention"] = "workqueue"
        if channel is Channel.TRAJECTORIES:
            stream["max_bytes"] = 5 << 30  # grown while it ran
        if channel in _NEWEST_ONLY:
            stream["max_msgs_per_subject"] = 1
        found.append(stream)
    signals = {
        "name": names.signal_stream,
        "subjects": [f"{names.signal_subject}>"],
        **common,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }
    return [*found, signals]


@asynccontextmanager
async def connected(url: str, credentials: str) -> AsyncIterator[Connection]:
    """A connection as some user."""
    connection = Connection(url, patience=_PATIENCE, attempt=5.0, credentials=credentials)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def names_of(uid: str) -> StreamNames:
    """Of the streams of the job `j`, in any release."""
    return StreamNames.of_job(namespace="default", job="j", uid=uid)


@asynccontextmanager
async def former_job(
    url: str, seeds: Mapping[str, str], uid: str, *, names: StreamNames | None = None
) -> AsyncIterator[NatsStore]:
    """The streams of the job `j`, or those of these names, are created; its store, as someone who may do everything."""
    names, credentials = names or names_of(uid), former_user(seeds, "streams")
    async with connected(url, credentials) as connection:
        for stream in _former_streams(names):
            await connection.call(f"STREAM.CREATE.{stream['name']}", stream)
        reward = {"durable_name": "reward", "ack_policy": "explicit", "ack_wait": 10 * 10**9}
        trajectories = names.stream(Channel.TRAJECTORIES)
        await connection.call(
            f"CONSUMER.CREATE.{trajectories}.reward", {"stream_name": trajectories, "config": reward}
        )
    store = NatsStore(
        url,
        subject=names.subject,
        stream_prefix=names.prefix,
        credentials=credentials,
        create=False,
        patience=_PATIENCE,
    )
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(store: NatsStore, uid: str) -> None:
    """Let a job of the former installation have messages in its streams, some of them deleted since."""
    ledger = Ledger(store, job=uid, instance="before")
    writer = (await ledger.replay()).writer.successor("before")
    await ledger.claim(writer, [EpochClaimed(writer.number, "before", uid)])
    sequences = [
        await store.publish(Channel.TRAJECTORIES, "payload", bytes([n]) * 200_000, message_id=f"t{n}")
        for n in range(30)
    ]
    await store.delete(Channel.TRAJECTORIES, sequences[:5] + sequences[9:11])
    for n in range(40):
        await store.publish(Channel.PROGRESS, f"g{n % 4}.0", b"some", headers={"At": str(n)})
        await store.publish(Channel.WORK, f"engine.e{n % 2}", b"work")
        await store.publish(Channel.METRICS, "steps", json.dumps({"step": n}).encode())
    for n in range(3):
        await store.publish(Channel.VERSIONS, "policy", f"version {n}".encode())
        await store.publish(Channel.WEIGHTS, f"chunk.v{n}", bytes(900_000))
    await store.put_signal("engine.e0", b"{}")


async def stored(url: str, credentials: str, uid: str) -> dict[str, list[dict[str, Any] | None]]:
    """By stream, all its messages as the server keeps them, with sequence and time; None for one that was deleted."""
    found: dict[str, list[dict[str, Any] | None]] = {}
    async with connected(url, credentials) as connection:
        for name in names_of(uid).all_streams:
            state = (await connection.call(f"STREAM.INFO.{name}", {}))["state"]
            get = partial(_message, connection, name)
            found[name] = [await get(number) for number in range(state["first_seq"], state["last_seq"] + 1)]
    return found


async def _message(connection: Connection, stream: str, sequence: int) -> dict[str, Any] | None:
    answer = await connection.find(f"STREAM.MSG.GET.{stream}", {"seq": sequence}, absent=10037)
    return None if answer is None else answer["message"]
