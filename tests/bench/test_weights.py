"""The benchmark of weight transports runs at its smallest size, and its own parts compute what they should."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from bench.weights import compare
from e2e.harness.link import Link
from e2e.harness.nats_server import EmbeddedServer

from bench import weights
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.weights.create import open_store


def test_all_of_it_at_a_small_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = weights.main(weights.SMOKE)
    assert [row["transport"] for row in found["transports"]] == ["copied twice", "Files", "Nats", "memory"]
    assert [row["dtype"] for row in found["link"]] == ["float32", "bfloat16"]
    assert all(row["fewer_bytes"] > 10 for row in found["link"])  # a request may have been asked twice
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
