"""Jobs whose streams have accounts of their own, on a real API server: one that is restored, and one that stops."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import ISSUER, SEEDS
from e2e.harness.nats_server import EmbeddedServer
from nats.aio.client import RawCredentials
from operators import Namespace, Operator, manifest
from tests.waiting import until

from rljob_core.errors import StoreUnavailable
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.credentials import STREAMS, JobKeys, operator_credentials
from rljob_operator.reconcile.nats_connection import brief_client
from rljob_operator.reconcile.server_storage import server_storage
from rljob_runtime.messaging.nats.store import NatsStore

pytestmark = pytest.mark.xdist_group("operator")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """One that asks for credentials."""
    accounts = server_config(SEEDS, folder=str(tmp_path / "accounts"))
    async with EmbeddedServer(tmp_path / "nats", accounts=accounts) as server:
        yield server


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, str]:
    """Variables of an operator that makes accounts."""
    issuer, credentials = tmp_path / "issuer.json", tmp_path / "operator.creds"
    issuer.write_text(ISSUER.text())
    credentials.write_text(operator_credentials(ISSUER))
    return {"RLJOB_NATS_ISSUER": str(issuer), "RLJOB_NATS_CREDENTIALS": str(credentials)}


async def test_a_job_is_filled_before_it_first_runs_and_never_again(
    crds: Any, watched: Namespace, server: EmbeddedServer, secured: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with Operator(crds.kubeconfig, server.url, watched.name, log, **secured):
        await asyncio.to_thread(_check, watched, server.url, tmp_path / "jwt")


def _check(watched: Namespace, url: str, token: Path) -> None:
    watched.apply(manifest(suspend=True))
    pod = json.loads(watched.existing("configmap", "sums-audit")["data"]["restore.yaml"])
    (container,) = pod["spec"]["containers"]
    (reference,) = (e["valueFrom"]["secretKeyRef"] for e in container["env"] if "CREDENTIALS" in e["name"])
    secret = watched.existing("secret", reference["name"])
    credentials = base64.b64decode(secret["data"][reference["key"]]).decode()
    (mapped,) = (v["configMap"] for v in pod["spec"]["volumes"] if v["name"] == "nats-token")
    (item,) = mapped["items"]
    token.write_text(watched.existing("configmap", mapped["name"])["data"][item["key"]])
    uid = watched.get("rljob", "sums")["metadata"]["uid"]
    asyncio.run(_restore(watched, url, uid, credentials, token))


async def _restore(watched: Namespace, url: str, uid: str, credentials: str, token: Path) -> None:
    names = StreamNames.of_job(namespace=watched.name, job="sums", uid=uid)

    def store() -> NatsStore:
        return NatsStore(
            url,
            subject=names.subject,
            stream_prefix=names.prefix,
            credentials=credentials,
            token_path=str(token),
            inbox=inbox_of(uid, "restorer"),
            create=False,
            patience=5.0,
            connect=5.0,
        )

    filling = store()
    await filling.open()
    line = StepMetrics(47, 47, 1.0, trainer_attempt=5)
    await filling.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(line))
    await filling.close()
    until(lambda: watched.get("rljob", "sums")["status"].get("step") == 47)
    assert watched.is_true("sums", "Suspended")
    assert not watched.children()
    watched.patch("rljob", "sums", {"spec": {"suspend": False}})
    watched.existing("job", "sums-trainer-6")
    assert watched.names("job") == ["sums-trainer-6"]
    with pytest.raises(StoreUnavailable):
        await store().open()


async def test_a_job_that_stops_gives_back_the_room_of_its_streams(
    crds: Any, watched: Namespace, server: EmbeddedServer, secured: dict[str, str], tmp_path: Path
) -> None:
    """It is suspended, cannot be followed, is resumed, and then fails."""

    async def read(uid: str) -> int:
        keys = JobKeys(ISSUER, watched.name, "sums", uid, 0)
        credentials = RawCredentials(operator_credentials(ISSUER))
        async with brief_client(server.url, credentials, ISSUER.trusted) as system:
            return (await server_storage(system)).room(keys.account(STREAMS)).allowed or 0

    def check() -> None:
        watched.apply(manifest())
        watched.existing("job", "sums-trainer-1")
        uid = watched.get("rljob", "sums")["metadata"]["uid"]

        def room() -> int:
            return asyncio.run(read(uid))

        whole = room()
        watched.patch("rljob", "sums", {"spec": {"suspend": True}})
        until(lambda: 0 < room() < whole // 4)
        wrong = {"template": {"spec": {"containers": [{"image": "x"}]}}}
        watched.patch("rljob", "sums", {"spec": {"trainer": wrong}})
        until(lambda: watched.is_true("sums", "Stalled"))
        watched.patch("rljob", "sums", {"spec": {"trainer": {"template": None}}})
        until(lambda: watched.is_true("sums", "Suspended"))
        assert room() < whole // 4
        watched.patch("rljob", "sums", {"spec": {"suspend": False}})
        watched.existing("job", "sums-trainer-2")
        assert room() == whole
        watched.patch("rljob", "sums", {"spec": {"activeDeadlineSeconds": 1}})
        until(lambda: watched.is_true("sums", "Failed"))
        until(lambda: room() < whole // 4)

    with Operator(crds.kubeconfig, server.url, watched.name, tmp_path / "operator.log", **secured):
        await asyncio.to_thread(check)
