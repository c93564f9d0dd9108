"""What TLS costs a client of the message store: a server with a certificate beside one without, in one run.

One client, on the same machine as the servers, publishes payloads of two sizes, many at once; and small messages, each
after the one before was acknowledged. Rounds with and without TLS alternate. Client and server share the machine
and its cores, so the encryption of both sides counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness.nats_server import EmbeddedServer

from rljob_core.ports import Channel
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_operator.nats.certificates import CLIENTS, server_certificate
from rljob_operator.nats.credentials import operator_credentials
from rljob_runtime.messaging.nats.store import NatsStore

PAYLOADS = {"64 KiB": 65_536, "900 kB": 900_000}
"""Bytes of a payload, a case each."""
SMALL = "500 B, one after the other"
_SMALL_BYTES = 500
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: with and without TLS.
        megabytes: of payloads of each size, in a round.
        small: small messages of a round.
    """

    rounds: int = 15
    megabytes: int = 60
    small: int = 600


FULL = Sizes()
SIZES = {"full": FULL, "quick": Sizes(rounds=5), "smoke": Sizes(rounds=1, megabytes=1, small=5)}
SMOKE = SIZES["smoke"]


async def _round(store: NatsStore, sizes: Sizes) -> dict[str, float]:
    """Messages per second of each case."""
    found = {}
    for name, size in PAYLOADS.items():
        count = max(1, sizes.megabytes * 1_000_000 // size)
        found[name] = await _publish(store, os.urandom(size), count, at_once=_AT_ONCE)
        await store.purge(Channel.TRAJECTORIES, "payload")
    found[SMALL] = await _publish(store, os.urandom(_SMALL_BYTES), sizes.small, at_once=1)
    return found


async def _publish(store: NatsStore, payload: bytes, count: int, *, at_once: int) -> float:
    left = iter(range(count))

    async def one_by_one() -> None:
        for _ in left:
            await store.publish(Channel.TRAJECTORIES, "payload", payload)

    begun = time.perf_counter()
    await asyncio.gather(*(one_by_one() for _ in range(at_once)))
    return count / (time.perf_counter() - begun)


async def measure(sizes: Sizes) -> dict[bool, list[dict[str, float]]]:
    """The rounds, by whether they were encrypted."""
    seeds = Seeds.complete({}, os.urandom)
    issued = issuer(seeds)
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = {"cert_file": folder / "server.crt", "key_file": folder / "server.key"}
        texts = server_certificate(seeds.signing, CLIENTS, ["127.0.0.1"])
        for file, text in zip(files.values(), texts, strict=True):
            file.write_text(text)
        tls = {name: str(file) for name, file in files.items()} | {"handshake_first": "auto"}
        stores = {}
        for encrypted in found:
            server = EmbeddedServer(
                folder / f"nats-{encrypted}", accounts=f"tls: {json.dumps(tls)}\n" if encrypted else ""
            )
            await stack.enter_async_context(server)
            url = server.url.replace("nats://", "tls://") if encrypted else server.url
            # The servers ask for no credentials: of these, the authority is used.
            credentials = operator_credentials(issued) + issued.trusted
            store = NatsStore(url, subject="rljob.b", stream_prefix="RLJOB_b", credentials=credentials)
            await store.open()
            stack.push_async_callback(store.close)
            stores[encrypted] = store
            await _round(store, SMOKE)
        for number in range(sizes.rounds):
            for encrypted in sorted(stores, reverse=number % 2 == 1):
                found[encrypted].append(await _round(stores[encrypted], sizes))
    return found


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Run all and print them as a table.

    Returns:
        `cases`: a row for each size of messages; `ratio` is the median over pairs of rounds.
    """
    found = asyncio.run(measure(sizes))
    cases = []
    print(f"{'messages':>28}{'plain/s':>10}{'TLS/s':>10}{'ratio':>7}")
    for name in (*PAYLOADS, SMALL):
        plain, encrypted = ([r[name] for r in found[side]] for side in (False, True))
        ratio = statistics.median(e / p for e, p in zip(encrypted, plain, strict=True))
        rates = statistics.median(plain), statistics.median(encrypted)
        cases.append(
            {
                "messages": name,
                "plain_per_second": round(rates[0], 1),
                "tls_per_second": round(rates[1], 1),
                "ratio": round(ratio, 3),
            }
        )
        print(f"{name:>28}{rates[0]:10,.0f}{rates[1]:10,.0f}{ratio:7.2f}")
    return {"cases": cases}
