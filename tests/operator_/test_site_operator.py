"""The hub's operator and that of a site, each on an API server of its own, over two nats-servers.

The site's has no controllers: a test says what has become of a Deployment. Its operator has the rights that
`rljob site add` gives it, and the admission policies hold.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.availability import available
from e2e.harness.binaries import CONTROL_PLANE, Binaries, find
from e2e.harness.control_plane import ControlPlane
from installation import MANIFESTS, kubeconfig_of
from operators import Namespace, Object, Operator, manifest
from site_servers import SITE, SiteServers
from tests.waiting import until

from rljob_cli.sites.installation import Hub, installation

pytestmark = [pytest.mark.xdist_group("operator")]

POOL = "sums-rollout-far"
ACCOUNT = "system:serviceaccount:rljob-system:rljob-operator"
REMOTE = {
    f"rolloutpool/{POOL}",
    f"configmap/{POOL}-config",
    f"deployment/{POOL}",
    f"poddisruptionbudget/{POOL}",
    f"serviceaccount/{POOL}-worker",
    f"networkpolicy/{POOL}-workers",
}
POOLS = [{"name": "near"}, {"name": "far", "site": SITE, "replicas": 2}]


@pytest.fixture(scope="module")
def control_plane_of_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with available():
        (found := find()).require(CONTROL_PLANE)
    binaries = Binaries(found.origin, {name: found[name] for name in CONTROL_PLANE})
    with ControlPlane(tmp_path_factory.mktemp("site"), binaries=binaries, audit=True) as running:
        hub = Hub("nats.hub.example", 7422, is_ip=False, credentials="none", authority="none")
        images = {"image": "rljob-operator:0.1.0", "worker_image": "rljob-worker:0.1.0"}
        running.kubectl.apply(installation(SITE, hub, domain=SITE, system="rljob-system", **images))
        for folder in ("policies/operator", "policies/namespaces/enforce"):
            running.kubectl("apply", "--kustomize", str(MANIFESTS / folder), "--validate=strict")
        running.kubectl.wait("condition=Established", "crd/rolloutpools.rljob.dev")
        yield running


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SiteServers]:
    found = SiteServers(tmp_path / "nats")
    asyncio.run(found.__aenter__())
    yield found
    asyncio.run(found.__aexit__())


@pytest.fixture
def there(control_plane_of_site: ControlPlane, watched: Namespace) -> Iterator[Namespace]:
    """The namespace of the test's own, at the site."""
    kubectl = control_plane_of_site.kubectl
    kubectl("create", "namespace", watched.name)
    kubectl("label", "namespace", watched.name, "rljob.dev/enabled=true")
    yield Namespace(kubectl.within(watched.name))
    kubectl("delete", "namespace", watched.name, "--wait=false")


@pytest.fixture
def hub(crds: Any, watched: Namespace, servers: SiteServers, tmp_path: Path) -> Iterator[Operator]:
    with Operator(crds.kubeconfig, servers.hub.url, watched.name, tmp_path / "hub.log") as running:
        yield running


@pytest.fixture
def site(
    control_plane_of_site: ControlPlane, there: Namespace, servers: SiteServers, tmp_path: Path
) -> Iterator[Operator]:
    account = tmp_path / "site.kubeconfig"
    kubeconfig_of(control_plane_of_site.kubectl, "rljob-operator", "rljob-system", account)
    with Operator(account, servers.site.url, there.name, tmp_path / "site.log", RLJOB_SITE=SITE) as running:
        yield running
    audit = control_plane_of_site.audit_log
    assert audit is not None
    lines = audit.read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if ACCOUNT in line and line.endswith("}\n")]
    refused = [r["requestURI"] for r in records if r.get("responseStatus", {}).get("code") in {401, 403, 422}]
    assert records
    assert refused == []


@pytest.fixture
def a_site(watched: Namespace) -> Iterator[None]:
    watched.apply(site_of(watched.name))
    yield
    watched("delete", "rlsite", SITE)


def site_of(namespace: str) -> Object:
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "Site",
        "metadata": {"name": SITE},
        "spec": {"namespaces": [namespace], "graceSeconds": 0},
    }


def ready(watched: Namespace) -> tuple[str, str]:
    conditions = (watched.get("rolloutpool", POOL) or {}).get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "Ready"), ("", ""))


def test_a_pool_runs_at_its_site_through_cuts_and_goes_with_its_job(
    hub: Operator, site: Operator, watched: Namespace, there: Namespace, servers: SiteServers
) -> None:
    watched.apply(manifest(rollout={"pools": POOLS}, weights={"transport": "Nats"}))
    until(lambda: (watched.condition("sums", "Stalled") or {}).get("reason") == "UnknownSite")
    watched.apply(site_of(watched.name))
    until(lambda: there.children() == REMOTE)
    assert not watched.is_true("sums", "Stalled")
    assert watched.get("deployment", POOL) is None
    until(lambda: ready(watched) == ("False", "EnginesNotReady"))
    served = {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    there.patch("deployment", POOL, {"status": served}, "--subresource=status")
    until(lambda: ready(watched) == ("True", "EnginesServe"))
    assert watched.get("rolloutpool", POOL)["status"]["readyReplicas"] == 2
    until(lambda: (watched.get("rljob", "sums") or {})["status"]["rollout"] == "2/3")
    until(lambda: (watched.get("rlsite", SITE) or {})["status"]["connected"])
    watched("scale", "rolloutpool", POOL, "--replicas=3")
    until(lambda: there.existing("deployment", POOL)["spec"]["replicas"] == 3)

    # The hub is lost: whatever breaks at the site is repaired there.
    asyncio.run(servers.hub.kill())
    site.kill()
    site.start()
    uid = there.existing("deployment", POOL)["metadata"]["uid"]
    there("delete", "deployment", POOL, "--wait=false")
    until(lambda: (there.get("deployment", POOL) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid)
    until(lambda: ready(watched) == ("Unknown", "SiteAway"))
    asyncio.run(servers.hub.start())
    until(lambda: ready(watched)[0] != "Unknown")

    # The site is away while its job is deleted.
    asyncio.run(servers.site.kill())
    watched("delete", "rljob", "sums", "--timeout=300s")
    assert there.children() == REMOTE
    asyncio.run(servers.site.start())
    until(lambda: not there.children())
    watched("delete", "rlsite", SITE)


def test_a_pool_is_scaled_in_the_site_s_cluster_and_ends_with_its_site(
    hub: Operator, site: Operator, watched: Namespace, there: Namespace
) -> None:
    watched.apply(site_of(watched.name))
    far = {"name": "far", "site": SITE, "scaling": {"owner": "Site", "maxReplicas": 4}}
    watched.apply(manifest(rollout={"pools": [{"name": "near"}, far]}, weights={"transport": "Nats"}))
    until(lambda: there.children() == REMOTE)
    there("scale", "rolloutpool", POOL, "--replicas=3")
    until(lambda: there.existing("deployment", POOL)["spec"]["replicas"] == 3)
    until(lambda: watched.existing("rolloutpool", POOL)["spec"]["replicas"] == 3)
    watched("scale", "rolloutpool", POOL, "--replicas=1")
    until(lambda: watched.existing("rolloutpool", POOL)["spec"]["replicas"] == 3)
    assert there.existing("rolloutpool", POOL)["spec"]["replicas"] == 3
    watched("delete", "rlsite", SITE)
    until(lambda: not there.children())
    until(lambda: (watched.condition("sums", "Stalled") or {}).get("reason") == "UnknownSite")
    watched.apply(site_of(watched.name))
    until(lambda: there.children() == REMOTE)
    watched("delete", "rljob", "sums", "--timeout=300s")
    until(lambda: not there.children())
    watched("delete", "rlsite", SITE)


def test_a_name_that_is_taken_at_the_site_is_told_at_the_hub(
    hub: Operator, site: Operator, a_site: None, watched: Namespace, there: Namespace
) -> None:
    there.apply(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RolloutPool",
            "metadata": {"name": POOL, "labels": {"rljob.dev/job": "sums"}},
            "spec": {"job": "sums", "pool": "far", "config": "{}", "template": {}},
        }
    )
    watched.apply(manifest(rollout={"pools": POOLS}, weights={"transport": "Nats"}))
    until(lambda: ready(watched) == ("False", "NameTaken"))
    assert there.children() == {f"rolloutpool/{POOL}"}
    there("delete", "rolloutpool", POOL)
    until(lambda: there.children() == REMOTE)
    watched("delete", "rljob", "sums", "--timeout=300s")
    until(lambda: not there.children())


def test_where_the_hub_is_idle_a_site_costs_a_write_of_its_status_now_and_then(
    hub: Operator, watched: Namespace
) -> None:
    """A job without a site asks for no Sites at all."""
    watched.apply(manifest())
    until(lambda: watched.get("job", "sums-trainer-1"))
    text = [line for line in hub.metrics().splitlines() if 'kind="Site"' in line]
    assert text == []
    watched("delete", "rljob", "sums", "--timeout=300s")
