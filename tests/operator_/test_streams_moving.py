"""A job whose streams the operator moves out of the account that all jobs shared: what its status says meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.nats_server import EmbeddedServer
from former_installation import fill, former_config, former_job, former_seeds
from operators import Namespace, Object, Operator, manifest
from tests.waiting import until

from rljob_core.stream_names import StreamNames
from rljob_operator.nats.accounts import Seeds, issuer, known_seeds, server_config

pytestmark = pytest.mark.xdist_group("operator")


async def test_a_job_says_that_its_streams_are_moved_and_then_goes_on(
    crds: SharedControlPlane, watched: Namespace, tmp_path: Path
) -> None:
    await asyncio.to_thread(watched.apply, manifest())
    uid = watched.existing("rljob", "sums")["metadata"]["uid"]
    names = StreamNames.of_job(namespace=watched.name, job="sums", uid=uid)
    former = former_seeds()
    async with (
        EmbeddedServer(tmp_path / "nats", accounts=former_config(former)) as server,
        former_job(server.url, former, uid, names=names) as store,
    ):
        await fill(store, uid)
    seeds = Seeds.complete(known_seeds(json.dumps(former)), os.urandom)
    file = tmp_path / "issuer.json"
    file.write_text(issuer(seeds).text())
    accounts = server_config(seeds, folder=str(tmp_path / "accounts"))
    async with EmbeddedServer(tmp_path / "nats", accounts=accounts) as server:
        log, variables = tmp_path / "operator.log", {"RLJOB_NATS_ISSUER": str(file)}
        with Operator(crds.kubeconfig, server.url, watched.name, log, **variables):
            await asyncio.to_thread(_check, watched)


def _check(watched: Namespace) -> None:
    found = until(lambda: _ready(watched, "StreamsMoving"))
    assert found["status"] == "False"
    assert "NATS account of its own" in found["message"]
    until(lambda: "they are being synced" in (_ready(watched, "StreamsMoving") or found)["message"])
    assert not watched.is_true("sums", "Stalled")
    # A minute later, when what was copied is on the disk.
    until(lambda: (watched.condition("sums", "Ready") or found)["reason"] != "StreamsMoving")
    watched.existing("job", "sums-trainer-1")


def _ready(watched: Namespace, reason: str) -> Object | None:
    found = watched.condition("sums", "Ready")
    return found if found is not None and found["reason"] == reason else None
