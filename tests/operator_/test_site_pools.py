"""The pools of a site in its own cluster: what is made of what the hub wants, what goes, what the hub is told."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import make_small_job

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import rollout_pool
from rljob_operator.children.metrics_port import scrapers
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.node_notices import NodeNotice
from rljob_operator.cluster.port import Manifest, Ref, controller_uid
from rljob_operator.decisions.site_documents import WantedPools, changes_at_hub, document_of, wanted_pools
from rljob_operator.decisions.site_reports import PoolReport, SiteBeat, capacity_of
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_operator.nats.credentials import JobKeys, secret_credentials
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.site_pools import SitePools

NAME = "chain-sum-rollout-far"
POOL = Ref("RolloutPool", "default", NAME)
DEPLOYMENT = Ref("Deployment", "default", NAME)
JOB = ("default", "chain-sum")
SITE_URL = "nats://at-the-site:4222"
MADE = {
    f"RolloutPool/{NAME}",
    f"ConfigMap/{NAME}-config",
    f"Deployment/{NAME}",
    f"PodDisruptionBudget/{NAME}",
    f"ServiceAccount/{NAME}-worker",
    f"NetworkPolicy/{NAME}-workers",
}


def far_job(**pool: Any) -> RLJob:
    return make_small_job(rollout__pools=[{"name": "near"}, {"name": "far", "site": "east", **pool}])


@pytest.fixture
def hub(defaults: ClusterDefaults) -> ClusterDefaults:
    return replace(defaults, sites=True, per_job=True)


def hub_pool(hub: ClusterDefaults, *, generation: int = 1, uid: str = "hub-uid", **pool: Any) -> Manifest:
    """The RolloutPool as the hub's API server has it."""
    job = far_job(**pool)
    made = rollout_pool(resolve_job(job, hub), job.spec.rollout.pools[1], None)
    return {**made, "metadata": {**made["metadata"], "uid": uid, "generation": generation}}


def told(*pools: Manifest, **damage: bytes) -> WantedPools:
    """What the site reads."""
    held = dict(changes_at_hub(map(document_of, pools), {}).puts)
    held.setdefault("index.default", b'{"format": 1, "pools": {}}')
    return wanted_pools({**held, **{key.replace("__", "."): value for key, value in damage.items()}})


class SiteCluster:
    def __init__(self, server: DictionaryServer, defaults: ClusterDefaults) -> None:
        self.server = server
        self.notices: dict[str, NodeNotice] = {}
        self.pools = SitePools(
            server,
            replace(defaults, nats_url=SITE_URL, per_job=True),
            "east",
            notices=lambda: self.notices,
            clock=lambda: server.now,
        )

    async def settle(self, wanted: WantedPools) -> PoolReport | None:
        """The report of the pool, once nothing is left to do."""
        changes = 1
        while changes:
            changes, reports = await self.pools.reconcile(JOB, wanted)
        return reports.get(("default", NAME))

    def objects(self) -> set[str]:
        return {
            f"{ref.kind}/{ref.name}" for ref in self.server.objects if ref.kind not in {"Pod", "ReplicaSet"}
        }


@pytest.fixture
def cluster(server: DictionaryServer, defaults: ClusterDefaults) -> SiteCluster:
    return SiteCluster(server, defaults)


def ready(report: PoolReport | None) -> tuple[str, str, str]:
    assert report is not None
    (found,) = (c for c in report.conditions if c.type == "Ready")
    return found.status, found.reason, found.message


# ---------------------------------------------------------------------------------------------- what is made


async def test_a_pool_is_made_with_all_that_its_pods_need(cluster: SiteCluster, hub: ClusterDefaults) -> None:
    await cluster.settle(told(hub_pool(hub, replicas=3)))
    assert cluster.objects() == MADE
    objects = cluster.server.objects
    uid = objects[POOL]["metadata"]["uid"]
    assert "ownerReferences" not in objects[POOL]["metadata"], "its RLJob is not in this cluster"
    assert {controller_uid(found) for ref, found in objects.items() if ref != POOL} == {uid}
    deployment = objects[DEPLOYMENT]["spec"]
    assert deployment["replicas"] == 3
    pod = deployment["template"]["spec"]
    assert pod["serviceAccountName"] == f"{NAME}-worker"
    (container,) = pod["containers"]
    assert {v["name"]: v.get("value") for v in container["env"]}["RLJOB_NATS_URL"] == SITE_URL
    assert hub.nats_url not in json.dumps(deployment)
    policy = objects[Ref("NetworkPolicy", "default", f"{NAME}-workers")]["spec"]
    assert "ingress" not in policy
    assert {"podSelector": {}} in [peer for rule in policy["egress"] for peer in rule.get("to", ())]
    assert objects[Ref("ConfigMap", "default", f"{NAME}-config")]["data"] == {
        "config.json": hub_pool(hub, replicas=3)["spec"]["config"]
    }


async def test_scrapers_of_the_site_connect_to_the_port_that_the_hub_gave_its_pods(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    await cluster.settle(told(hub_pool(replace(hub, metrics_port=9999))))
    policy = cluster.server.objects[Ref("NetworkPolicy", "default", f"{NAME}-workers")]["spec"]
    assert policy["ingress"] == scrapers(9999, ())


async def test_the_engines_have_credentials_that_were_made_at_the_site(
    server: DictionaryServer, defaults: ClusterDefaults, hub: ClusterDefaults
) -> None:
    """In place of the hub's, of which no key is there; the token follows the time, and the Secret stays."""
    own, other = (issuer(Seeds.complete({}, os.urandom)) for _ in range(2))
    cluster = SiteCluster(server, replace(defaults, issuer=own))
    await cluster.settle(told(hub_pool(replace(hub, issuer=other))))
    uid = make_small_job().metadata.uid or ""
    keys = JobKeys(own, *JOB, uid)
    (secret,) = (ref.name for ref in server.objects if ref.kind == "Secret")
    assert cluster.objects() == {*MADE, f"Secret/{secret}", f"ConfigMap/{NAME}-nats-tokens"}
    made = server.objects[Ref("Secret", "default", secret)]["data"]["user.creds"]
    assert base64.b64decode(made).decode() == secret_credentials(keys, Holder.ROLLOUT)
    pod = server.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {v["name"]: v for v in container["env"]}
    assert variables["RLJOB_NATS_CREDENTIALS"]["valueFrom"]["secretKeyRef"]["name"] == secret
    assert variables["RLJOB_NATS_JWT"]["value"] == "/etc/rljob-nats/jwt"
    (volume,) = (v for v in pod["volumes"] if v["name"] == "nats-token")
    assert volume["configMap"]["name"] == f"{NAME}-nats-tokens"
    assert [m["mountPath"] for m in container["volumeMounts"]].count("/etc/rljob-nats") == 1
    tokens = Ref("ConfigMap", "default", f"{NAME}-nats-tokens")
    before = server.objects[tokens]["data"]
    server.now += timedelta(seconds=defaults.token_seconds)
    await cluster.settle(told(hub_pool(replace(hub, issuer=other))))
    assert server.objects[tokens]["data"] != before
    assert [ref.name for ref in server.objects if ref.kind == "Secret"] == [secret]


async def test_a_hub_without_credentials_has_sites_with_some(
    server: DictionaryServer, defaults: ClusterDefaults, hub: ClusterDefaults
) -> None:
    cluster = SiteCluster(server, replace(defaults, issuer=issuer(Seeds.complete({}, os.urandom))))
    await cluster.settle(told(hub_pool(hub)))
    (container,) = server.objects[DEPLOYMENT]["spec"]["template"]["spec"]["containers"]
    assert "RLJOB_NATS_CREDENTIALS" in {v["name"] for v in container["env"]}


async def test_what_others_change_is_changed_back_and_a_new_spec_is_followed(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    await cluster.settle(told(hub_pool(hub)))
    cluster.server.objects[DEPLOYMENT]["spec"]["replicas"] = 9
    del cluster.server.objects[Ref("ServiceAccount", "default", f"{NAME}-worker")]
    await cluster.settle(told(hub_pool(hub)))
    assert cluster.objects() == MADE
    assert cluster.server.objects[DEPLOYMENT]["spec"]["replicas"] == 1
    report = await cluster.settle(told(hub_pool(hub, replicas=2, generation=2)))
    assert cluster.server.objects[DEPLOYMENT]["spec"]["replicas"] == 2
    assert report is not None
    assert report.generation == 2
    uid = cluster.server.objects[POOL]["metadata"]["uid"]
    await cluster.settle(told(hub_pool(hub, replicas=2, uid="made-again")))
    assert cluster.server.objects[POOL]["metadata"]["uid"] == uid, (
        "engines go on where the hub's pool is made again"
    )


async def test_a_pool_that_the_list_does_not_name_goes_and_a_strangers_stays(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    await cluster.settle(told(hub_pool(hub)))
    stranger = {
        "metadata": {
            "name": "own",
            "namespace": "default",
            "uid": "x",
            "labels": {"rljob.dev/job": "chain-sum"},
        }
    }
    cluster.server.objects[Ref("ConfigMap", "default", "own")] = {"kind": "ConfigMap", **stranger}
    of_a_job_here = hub_pool(hub, uid="here")
    of_a_job_here["metadata"]["name"] = "chain-sum-rollout-near"
    cluster.server.objects[Ref("RolloutPool", "default", "chain-sum-rollout-near")] = of_a_job_here
    assert await cluster.settle(told()) is None
    assert f"delete {POOL}" in cluster.server.log
    assert {"ConfigMap/own", "RolloutPool/chain-sum-rollout-near"} <= cluster.objects()
    assert f"RolloutPool/{NAME}" not in cluster.objects()


async def test_a_pool_of_another_site_is_not_this_one_s(cluster: SiteCluster, hub: ClusterDefaults) -> None:
    await cluster.settle(told(hub_pool(hub)))
    cluster.server.objects[POOL]["spec"]["managedBy"] = "rljob.dev/site-west"
    before = cluster.objects()
    report = await cluster.settle(told(hub_pool(hub)))
    assert cluster.objects() == before
    assert ready(report)[:2] == ("False", "NameTaken")


@pytest.mark.parametrize("damage", [b"", b"damaged"])
async def test_a_pool_whose_document_cannot_be_read_stays(
    damage: bytes, cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    await cluster.settle(told(hub_pool(hub)))
    cluster.server.log.clear()
    await cluster.settle(told(hub_pool(hub, replicas=5), **{f"pool__default__{NAME}": damage}))
    assert cluster.server.log == []
    assert cluster.objects() == MADE


async def test_a_pool_of_another_release_is_told_and_what_runs_stays(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    await cluster.settle(told(hub_pool(hub)))
    newer = hub_pool(hub, replicas=5, generation=2)
    config = json.loads(newer["spec"]["config"])
    newer["spec"]["config"] = json.dumps({**config, "uid": 7})
    cluster.server.log.clear()
    report = await cluster.settle(told(newer))
    assert cluster.server.log == []
    status, reason, message = ready(report)
    assert (status, reason) == ("False", "UnknownRelease")
    assert "is of another release than this site's operator, which cannot read its uid" in message
    assert report is not None
    assert report.generation == 2, "or the hub would say that the site has not answered yet"


async def test_a_pool_that_the_cluster_refuses_keeps_no_other_from_being_made(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    other = hub_pool(hub, uid="other-uid")
    other["metadata"] = {
        **other["metadata"],
        "name": "chain-sum-rollout-other",
        "labels": {**other["metadata"]["labels"], "rljob.dev/pool": "other"},
    }
    other["spec"] = {**other["spec"], "pool": "other"}
    cluster.server.refused.add(Ref("RolloutPool", "default", "chain-sum-rollout-other"))
    report = await cluster.settle(told(hub_pool(hub), other))
    assert cluster.objects() == MADE
    assert ready(report)[:2] == ("False", "EnginesNotReady")
    _, reports = await cluster.pools.reconcile(JOB, told(hub_pool(hub), other))
    assert ready(reports["default", "chain-sum-rollout-other"])[:2] == ("False", "PolicyRefused")


async def test_pods_have_the_service_account_that_their_template_names(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    await cluster.settle(told(hub_pool(hub, template={"spec": {"serviceAccountName": "with-rights"}})))
    pod = cluster.server.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "with-rights"


async def test_a_pool_of_the_next_release_runs_though_its_configuration_has_more_fields(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    """Its engines have the hub's image, which knows them."""
    newer = hub_pool(hub, replicas=2)
    config = json.loads(newer["spec"]["config"])
    spec = {**config["spec"], "shade": 1, "rollout": {**config["spec"]["rollout"], "tint": "pale"}}
    newer["spec"]["config"] = text = json.dumps({**config, "colour": "green", "spec": spec})
    await cluster.settle(told(newer))
    assert cluster.objects() == MADE
    config_map = cluster.server.objects[Ref("ConfigMap", "default", f"{NAME}-config")]
    assert config_map["data"] == {"config.json": text}


# ---------------------------------------------------------------------------------------------- what the hub is told


async def test_the_hub_is_told_what_serves(cluster: SiteCluster, hub: ClusterDefaults) -> None:
    wanted = told(hub_pool(hub, replicas=2, generation=4))
    report = await cluster.settle(wanted)
    assert ready(report) == ("False", "EnginesNotReady", "0 of 2 engines serve")
    cluster.server.now += timedelta(seconds=5)
    cluster.server.pods_ready()
    report = await cluster.settle(wanted)
    assert ready(report) == ("True", "EnginesServe", "")
    assert report is not None
    assert (report.uid, report.generation, report.replicas, report.ready_replicas) == ("hub-uid", 4, 2, 2)
    status = cluster.server.objects[POOL]["status"]
    assert status["readyReplicas"] == 2, "and so is whoever looks at the site"


SITE_SCALED = {"scaling": {"owner": "Site", "minReplicas": 1, "maxReplicas": 4}}


async def test_a_pool_that_is_scaled_at_its_site_keeps_that_size_and_the_hub_is_told(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    report = await cluster.settle(told(hub_pool(hub, **SITE_SCALED)))
    assert report is not None
    assert report.wanted == 1
    cluster.server.objects[POOL]["spec"]["replicas"] = 3  # as an HPA of the site's cluster sets it
    report = await cluster.settle(told(hub_pool(hub, **SITE_SCALED, generation=2)))
    assert cluster.server.objects[DEPLOYMENT]["spec"]["replicas"] == 3
    assert report is not None
    assert (report.wanted, report.generation) == (3, 2)
    cluster.server.objects[POOL]["spec"]["replicas"] = 9
    report = await cluster.settle(told(hub_pool(hub, **SITE_SCALED)))
    assert cluster.server.objects[DEPLOYMENT]["spec"]["replicas"] == 4, "the job's bounds hold"
    assert report is not None
    assert report.wanted == 9
    report = await cluster.settle(told(hub_pool(hub, scaling={"maxReplicas": 4}, generation=3)))
    assert cluster.server.objects[POOL]["spec"]["replicas"] == 1, "the hub's, from then on"
    assert report is not None
    assert report.wanted is None


async def test_the_hub_is_told_what_keeps_pods_from_running(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    wanted = told(hub_pool(hub, replicas=2))
    await cluster.settle(wanted)
    for number in range(2):
        pod = cluster.server.pod(cluster.server.objects[DEPLOYMENT], number)
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        pod["status"]["containerStatuses"][0]["state"] = waiting
    report = await cluster.settle(wanted)
    assert report is not None
    (event,) = report.events
    assert event.reason == "ImagePullFailed"
    assert event.message.startswith(f"{NAME}-0: ")
    assert "no such image" in event.message


async def test_engines_leave_nodes_of_the_site_that_are_about_to_be_taken_away(
    cluster: SiteCluster, hub: ClusterDefaults
) -> None:
    wanted = told(hub_pool(hub))
    await cluster.settle(wanted)
    cluster.server.pods_ready()
    pod = cluster.server.objects[Ref("Pod", "default", f"{NAME}-0")]
    pod["metadata"]["uid"], pod["spec"] = "pod-uid", {"nodeName": "west"}
    scheduled = cluster.server.now.isoformat()
    pod["status"]["conditions"] += [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}
    ]
    cluster.notices["west"] = NodeNotice("spot", cluster.server.now)
    await cluster.settle(wanted)
    assert f"delete Pod {NAME}-0" in cluster.server.log


def test_the_capacity_of_a_site_counts_devices_of_nodes_that_take_pods() -> None:
    def node(*, ready: str = "True", unschedulable: bool = False, **devices: str) -> Manifest:
        allocatable = {"cpu": "3920m", "memory": "8Gi", **{f"example.com/{k}": v for k, v in devices.items()}}
        conditions = [{"type": "Ready", "status": ready}]
        return {
            "spec": {"unschedulable": unschedulable},
            "status": {"conditions": conditions, "allocatable": allocatable},
        }

    nodes = [node(gpu="8", nic="0"), node(gpu="4"), node(gpu="8", ready="Unknown"), node(unschedulable=True)]
    assert capacity_of(nodes) == {"nodes": 2, "example.com/gpu": 12}
    assert capacity_of([]) == {"nodes": 0}
    most = capacity_of(2 * [node(**{"g" * 63: str((1 << 63) - 1)})])
    assert SiteBeat(number=1, capacity=dict(most)).capacity == most
