"""`rljob site add` on a real API server: the Site at the hub, and what the site's cluster applies."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.fixtures import SharedControlPlane
from invocation import rljob
from operators import Namespace
from ruamel.yaml import YAML

from rljob_operator.nats.accounts import Seeds, issuer, secrets
from rljob_operator.nats.site_accounts import SiteAccounts

pytestmark = pytest.mark.xdist_group("operator")

NAME = "joining"
SEEDS = Seeds.complete({}, os.urandom)


@pytest.fixture
def hub(crds: SharedControlPlane, watched: Namespace, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """An installation of the operator, in the test's namespace."""
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    labels = {"app": "rljob-operator"}
    variables = [{"name": "RLJOB_WORKER_IMAGE", "value": "registry.example/worker:1"}]
    container = {"name": "operator", "image": "registry.example/operator:1", "env": variables}
    watched.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "rljob-operator"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
    )
    for secret in secrets(SEEDS, namespace=watched.name):
        watched.apply(secret)
    return watched


def add(hub: Namespace, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What it prints, by kind and name."""
    done = rljob("site", "add", NAME, "--system", hub.name, *options)
    assert done.code == 0, done.errors
    return {(o["kind"], o["metadata"]["name"]): o for o in YAML(typ="safe").load_all(done.out)}


def test_a_cluster_joins_with_credentials_of_its_connection_alone(hub: Namespace, tmp_path: Path) -> None:
    try:
        printed = add(hub, "--hub", "nats.hub.example", "--for", "team-a")
        assert hub.existing("rlsite", NAME)["spec"]["namespaces"] == ["team-a"]
        secret = printed["Secret", "rljob-nats-hub"]["data"]
        credentials = base64.b64decode(secret["leaf.creds"]).decode()
        assert credentials == SiteAccounts(issuer(SEEDS), NAME).leaf_credentials()
        assert printed["Service", "nats-hub"]["spec"]["externalName"] == "nats.hub.example"
        (container,) = printed["Deployment", "rljob-operator"]["spec"]["template"]["spec"]["containers"]
        values = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert container["image"] == "registry.example/operator:1"
        assert values["RLJOB_SITE"] == NAME
        assert values["RLJOB_WORKER_IMAGE"] == "registry.example/worker:1"
        assert [kind for kind, _ in printed if kind == "Secret"] == ["Secret"]

        add(hub, "--hub", "203.0.113.7:17422", "--for", "team-b")
        assert hub.existing("rlsite", NAME)["spec"]["namespaces"] == ["team-a", "team-b"]
        again = add(hub, "--hub", "203.0.113.7:17422")
        assert hub.existing("rlsite", NAME)["spec"]["namespaces"] == ["team-a", "team-b"]
        assert again["EndpointSlice", "nats-hub"]["endpoints"] == [{"addresses": ["203.0.113.7"]}]
        assert "tls://nats-hub:17422" in again["ConfigMap", "nats"]["data"]["nats-server.conf"]
    finally:
        hub("delete", "rlsite", NAME, "--ignore-not-found")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--hub", "nats://hub:4222"), "--hub: "),
        (("--hub", "hub", "--for", "Team A"), "--for: "),
        (("--hub", "hub", "--system", "default"), "has no Secret rljob-nats-issuer with issuer.json"),
    ],
)
def test_bad_input_creates_nothing(hub: Namespace, options: tuple[str, ...], words: str) -> None:
    done = rljob("site", "add", "refused", "--system", hub.name, *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.errors[0]
    assert hub.get("rlsite", "refused") is None
