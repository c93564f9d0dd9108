"""The benchmark of weight transports runs at its smallest size, and its own parts compute what they should."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from bench.link import Bucket, Link
from bench.weights import compare
from e2e.harness.nats_server import EmbeddedServer

from bench import weights
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.weights.create import open_store


def test_all_of_it_at_a_small_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = weights.main(weights.SMOKE)
    assert [row["transport"] for row in found["transports"]] == ["copied twice", "Files", "Nats", "memory"]
    float32, bfloat16 = found["link"]
    assert 20 < float32["fewer_bytes"] < bfloat16["fewer_bytes"]
    assert all(row["anchor_bytes"] >= 1e6 * row["megabytes"] for row in found["link"])
    assert "copied twice" in capsys.readouterr().out


def test_what_changed_is_counted_by_bits() -> None:
    first = {"a": torch.zeros(1000), "b": torch.ones(1000)}
    second = {"a": torch.zeros(1000), "b": torch.ones(1000)}
    second["a"][:50] = -0.0
    second["b"][7] = float("nan")
    found = compare([first, second, second])
    assert found["fraction"] == 51 / 4000
    assert found["gain"] > 20


def test_what_the_link_lets_through() -> None:
    bucket = Bucket(1000.0)
    waited = 0.0
    for _ in range(100):  # as fast as it lets them
        waited += bucket.take(2000, now=waited)
    assert waited >= (200_000 - (64 << 10)) / 1000
    assert bucket.take(1000, now=waited + 1000.0) == 0.0  # it has rested, and saved no more than a piece
    assert bucket.take(100_000, now=waited + 1000.0) > 30


def test_the_link_carries_weights(nats_server: EmbeddedServer) -> None:
    with Link(nats_server.url, bits_per_second=1e9) as link:
        connect = partial(NatsStore, link.url, subject="rljob.link", stream_prefix="RLJOB_link")
        store = open_store("Nats", connect=connect)
        manifest = store.write(
            version=0, parent="", proposal=None, key="v0-a", tensors=[("a", torch.zeros(100_000))]
        )
        assert len(list(store.read(manifest))) == 1
        assert link.carried >= 400_000
        store.close()
