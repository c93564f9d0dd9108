"""The keys of NATS without a step by hand: on a real API server, under the Job's own service account."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.kubectl import Kubectl
from e2e.harness.nats_server import read_ports
from installation import MANIFESTS, NAMESPACED, Object, kubeconfig_of, moved, of_kind, rendered
from tests.waiting import until

from rljob_core.errors import StoreUnavailable
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.nats import accounts as nats_accounts
from rljob_operator.nats.accounts import (
    CERTIFICATE_SECRET,
    ISSUER_SECRET,
    ROUTES_SECRET,
    SEEDS_SECRET,
    SERVER_SECRET,
    Seeds,
)
from rljob_operator.nats.credentials import Issuer, operator_credentials
from rljob_operator.nats.jwt import public_key
from rljob_operator.nats.setup import SetupError, set_up
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.server import command

pytestmark = pytest.mark.smoke

SECRETS = (SERVER_SECRET, ISSUER_SECRET, CERTIFICATE_SECRET, ROUTES_SECRET)
"""What is there afterwards: the seeds are gone."""


@pytest.fixture
def here(kubectl: Kubectl, namespace: str) -> Kubectl:
    return kubectl.within(namespace)


@pytest.fixture
def service_account(here: Kubectl, tmp_path: Path) -> Path:
    """Credentials of the Job's service account, with the Role that the manifests give it."""
    objects = rendered(here, moved(NAMESPACED, here.namespace, tmp_path / "moved"))
    access = of_kind(objects, "ServiceAccount", "Role", "RoleBinding")
    here.apply([o for o in access if o["metadata"]["name"] == "rljob-nats-setup"])
    account = kubeconfig_of(here, "rljob-nats-setup", here.namespace, tmp_path / "setup.kubeconfig")
    job = Kubectl(here.program, account, namespace=here.namespace)
    until(
        lambda: job.succeeds("auth", "can-i", "create", "secrets")
    )  # the API server learns of it in its time
    return account


@pytest.fixture
async def api(service_account: Path) -> AsyncIterator[KubeApi]:
    connection = KubeApi(KubeLogin(service_account))
    yield connection
    await connection.close()


def stored(here: Kubectl) -> dict[str, Object]:
    """Files by Secret."""
    items = here.json("get", "secrets")["items"]
    return {item["metadata"]["name"]: item["data"] for item in items}


def fits(found: dict[str, Object], namespace: str) -> bool:
    """Whether the Secrets are all there and follow from the same seeds, which are gone."""
    read = json.loads(decoded(found[ISSUER_SECRET]["issuer.json"]))
    known = {
        "signing": read["signing_seed"],
        "accounts": read["accounts_seed"],
        "system": read["system_account"],
    }
    seeds = Seeds.complete(known, os.urandom)
    wanted = {m["metadata"]["name"]: m["data"] for m in nats_accounts.secrets(seeds, namespace=namespace)}
    # Of the operator's key, which signs them, nothing is left.
    parts = (found[SERVER_SECRET].pop("accounts.conf"), wanted[SERVER_SECRET].pop("accounts.conf"))
    ours, theirs = (re.findall(r"^system_account: (\S+)", decoded(text), re.MULTILINE) for text in parts)
    signed = [authority.split(".")[1] for authority in re.findall(r'operator: "(\S+)"', decoded(parts[0]))]
    keys = json.loads(base64.urlsafe_b64decode(signed[0] + "=="))["nats"]["signing_keys"]
    found[ROUTES_SECRET] = wanted[ROUTES_SECRET]
    return found == wanted and ours == theirs and keys == [public_key(seeds.signing)]


def decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def run(kubeconfig: Path, namespace: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "RLJOB_NAMESPACE": namespace}
    arguments = [sys.executable, "-m", "rljob_operator.nats.setup"]
    return subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_it_makes_what_is_missing_and_nothing_else(here: Kubectl, service_account: Path) -> None:
    first = run(service_account, here.namespace)
    assert (first.returncode, first.stdout) == (0, f"made {', '.join(SECRETS)}\n"), first.stderr
    before = stored(here)
    assert fits(stored(here), here.namespace)
    here("delete", "secret", CERTIFICATE_SECRET, ROUTES_SECRET)
    assert run(service_account, here.namespace).stdout == f"made {CERTIFICATE_SECRET}, {ROUTES_SECRET}\n"
    assert run(service_account, here.namespace).stdout == "all Secrets are there; nothing made\n"
    after = stored(here)
    assert after.pop(ROUTES_SECRET) != before.pop(
        ROUTES_SECRET
    )  # of another authority: nothing depends on it
    assert after == before


def test_an_upgrade_finds_what_older_releases_made() -> None:
    """Other accounts or another issuer would be a Secret that an administrator has to delete."""
    numbers = count(1)
    made = nats_accounts.secrets(
        Seeds.complete({}, lambda size: bytes([next(numbers)]) * size), namespace="rljob-system"
    )
    data = {m["metadata"]["name"]: m["data"] for m in made}
    files = data[SERVER_SECRET]["accounts.conf"], data[ISSUER_SECRET]["issuer.json"]
    assert [sha256(file.encode()).hexdigest()[:16] for file in files] == [
        "a5f4f09742980c37",
        "3bd420ed73eeaa29",
    ]


async def test_credentials_that_another_release_has_made_are_left_alone(api: KubeApi, here: Kubectl) -> None:
    """An operator's permissions change; of these, it makes its own credentials."""
    await set_up(api, here.namespace)
    older = base64.b64encode(b"older").decode()
    here("patch", "secret", ISSUER_SECRET, "--patch", json.dumps({"data": {"user.creds": older}}))
    assert await set_up(api, here.namespace) == ()
    assert stored(here)[ISSUER_SECRET]["user.creds"] == older


def test_its_service_account_may_do_no_more(here: Kubectl, service_account: Path) -> None:
    job = Kubectl(here.program, service_account, namespace=here.namespace)
    assert job.succeeds("auth", "can-i", "create", "secrets")
    assert all(job.succeeds("auth", "can-i", "get", f"secrets/{name}") for name in SECRETS)
    refused = [("get", "secrets/other"), ("list", "secrets"), ("get", "configmaps"), ("create", "pods")]
    refused += [(verb, f"secrets/{name}") for verb in ("update", "patch", "delete") for name in SECRETS]
    refused += [(verb, f"secrets/{SEEDS_SECRET}") for verb in ("update", "patch")]
    assert all(job.succeeds("auth", "can-i", verb, f"secrets/{SEEDS_SECRET}") for verb in ("get", "delete"))
    assert not [rule for rule in refused if job.succeeds("auth", "can-i", *rule)]
    assert not job.succeeds("auth", "can-i", "create", "secrets", "--namespace=default")


async def test_runs_at_once_make_one_set(api: KubeApi, here: Kubectl) -> None:
    made = await asyncio.gather(*(set_up(api, here.namespace) for _ in range(5)))
    assert sorted(name for names in made for name in names) == sorted(SECRETS)
    assert fits(stored(here), here.namespace)


class DyingApi(KubeApi):
    """The Job's pod is lost after, or while, it has created a number of Secrets, or deletes the seeds."""

    def __init__(self, api: KubeApi, lives: int, *, answered: bool) -> None:
        self._api, self._lives, self._answered = api, lives, answered

    async def get(self, ref: Ref) -> Manifest | None:
        return await self._api.get(ref)

    async def delete(self, ref: Ref, uid: str | None = None, *, grace: int | None = None) -> Manifest | None:
        if self._answered:
            await self._api.delete(ref, uid)
        raise ApiError(0, "Unreachable", "lost")

    async def create(self, manifest: Manifest) -> Manifest:
        if self._lives == 0 and not self._answered:
            await self._api.create(manifest)
        if self._lives == 0:
            raise ApiError(0, "Unreachable", "lost")
        self._lives -= 1
        return await self._api.create(manifest)


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("lives", [0, 1, 2, 5])
async def test_a_run_that_is_lost_is_gone_on_with(
    api: KubeApi, here: Kubectl, lives: int, answered: bool
) -> None:
    with pytest.raises(ApiError, match="lost"):
        await set_up(DyingApi(api, lives, answered=answered), here.namespace)
    rest = (SEEDS_SECRET, *SECRETS)[lives if answered else lives + 1 :]
    assert await set_up(api, here.namespace) == tuple(name for name in rest if name != SEEDS_SECRET)
    assert fits(stored(here), here.namespace)


def brought(namespace: str) -> list[Manifest]:
    return nats_accounts.secrets(Seeds.complete({}, os.urandom), namespace=namespace)


async def test_seeds_that_somebody_brought_stay(api: KubeApi, here: Kubectl) -> None:
    here.apply(nats_accounts.seeds_secret(Seeds.complete({}, os.urandom), namespace=here.namespace))
    assert await set_up(api, here.namespace) == SECRETS
    assert set(stored(here)) == {SEEDS_SECRET, *SECRETS}
    assert await set_up(api, here.namespace) == ()


async def test_secrets_that_somebody_brought_are_left_alone(api: KubeApi, here: Kubectl) -> None:
    here.apply(brought(here.namespace))
    before = stored(here)
    assert await set_up(api, here.namespace) == ()
    assert stored(here) == before


async def test_half_of_what_belongs_together_is_reported(api: KubeApi, here: Kubectl) -> None:
    here.apply(brought(here.namespace)[0])
    with pytest.raises(SetupError, match=f"supply {ISSUER_SECRET} too"):
        await set_up(api, here.namespace)
    assert set(stored(here)) == {SERVER_SECRET}


async def test_a_secret_that_does_not_follow_from_the_seeds_is_reported(api: KubeApi, here: Kubectl) -> None:
    here.apply(nats_accounts.seeds_secret(Seeds.complete({}, os.urandom), namespace=here.namespace))
    await set_up(api, here.namespace)
    here("delete", "secret", ISSUER_SECRET)
    here.apply(brought(here.namespace)[1])
    before = stored(here)
    with pytest.raises(SetupError, match=f"{ISSUER_SECRET} is not what"):
        await set_up(api, here.namespace)
    assert stored(here) == before


@pytest.mark.parametrize(
    ("files", "message"),
    [({}, "has no seeds.json"), ({"seeds.json": "{}"}, "lacks accounts"), ({"seeds.json": "["}, "")],
)
def test_seeds_that_are_none_end_the_job_at_once(
    here: Kubectl, service_account: Path, files: dict[str, str], message: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SEEDS_SECRET}, "stringData": files}
    here.apply(secret)
    ended = run(service_account, here.namespace)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: Secret {SEEDS_SECRET}: {message}")


def test_the_shipped_server_takes_the_accounts_and_the_operator(
    here: Kubectl, service_account: Path, tmp_path: Path
) -> None:
    """The configuration of manifests/base, beside the Secret's file, as the pod's volume lays them."""
    assert run(service_account, here.namespace).returncode == 0
    secrets = stored(here)
    configs = [o for o in of_kind(rendered(here, MANIFESTS), "ConfigMap") if o["metadata"]["name"] == "nats"]
    text = configs[0]["data"]["nats-server.conf"]
    local = {
        "0.0.0.0:4222": "127.0.0.1:-1",
        "127.0.0.1:8222": "127.0.0.1:-1",
        "port: 7422": "listen: 127.0.0.1:-1",
        "/data": str(tmp_path / "data"),
        "/etc/nats/": f"{tmp_path}/",
    }
    for place, ours in local.items():
        assert place in text
        text = text.replace(place, ours)
    (tmp_path / "nats-server.conf").write_text(f"{text}\nports_file_dir: {tmp_path}\n")
    files = {
        "accounts.conf": (SERVER_SECRET, "accounts.conf"),
        "server.crt": (CERTIFICATE_SECRET, "tls.crt"),
        "server.key": (CERTIFICATE_SECRET, "tls.key"),
    }
    for file, (name, key) in files.items():
        content = base64.b64decode(secrets[name][key]).decode()
        (tmp_path / file).write_text(content.replace("/data", str(tmp_path / "data")))
    ours = Issuer.read(decoded(secrets[ISSUER_SECRET]["issuer.json"]))
    theirs = nats_accounts.issuer(Seeds.complete({}, os.urandom))
    own = base64.b64decode(secrets[ISSUER_SECRET]["user.creds"]).decode() + ours.trusted
    with subprocess.Popen(command(tmp_path / "nats-server.conf"), stderr=subprocess.DEVNULL) as server:
        try:
            url = until(lambda: read_ports(tmp_path, server.pid)).replace("nats://", "tls://")
            answer = asyncio.run(_ask(url, patience=60, credentials=own))
            assert "error" in json.loads(answer.data)  # what it was asked to keep is no account
            foreign = operator_credentials(theirs) + ours.trusted  # of somebody else, who knows our server
            with pytest.raises(StoreUnavailable, match="Authorization"):
                asyncio.run(_ask(url, patience=10, credentials=foreign))
        finally:
            server.kill()


async def _ask(url: str, *, patience: float, **options: Any) -> Received:
    connection = Connection(url, patience=patience, attempt=3, **options)
    await connection.open()
    try:
        return await connection.request("$SYS.REQ.CLAIMS.UPDATE", b"none")
    finally:
        await connection.close()
