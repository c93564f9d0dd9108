"""Worker pods and the pod that audits: whose credentials they have, what users and operators may change of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from small_job import MakeJob

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.audit_pod import BACKUP_FILE, POD_FILE, RESTORE_FILE, audit_config_map
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.nats_credentials import secret_name
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.children.worker_pod import Patches, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import WORKERS, Role
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_operator.nats.permissions import Holder

_NUMBERS = itertools.count(1)
ISSUER = issuer(Seeds.complete({}, lambda size: bytes([next(_NUMBERS)]) * size))
VARIABLE = "RLJOB_NATS_CREDENTIALS"


@pytest.fixture
def secured(defaults: ClusterDefaults) -> ClusterDefaults:
    """A place whose NATS server asks for credentials."""
    return dataclasses.replace(defaults, issuer=ISSUER, per_job=True, containers=True)


def template(job: RLJob, defaults: ClusterDefaults, role: Role, user: Manifest | None = None) -> Manifest:
    pool = job.spec.rollout.pools[0] if role is Role.ROLLOUT else None
    spec: Manifest = pod_template(resolve_job(job, defaults), role, "c", Patches("spec.x", user), pool=pool)[
        "spec"
    ]
    return spec


def secret_of(container: Manifest) -> str | None:
    found = [e["valueFrom"]["secretKeyRef"] for e in container["env"] if e["name"] == VARIABLE]
    assert len(found) <= 1
    assert all(reference["key"] == "user.creds" for reference in found)
    return found[0]["name"] if found else None


def token_of(spec: Manifest, container: Manifest) -> str | None:
    """Whose token a container finds in the file that its variable names; None if it has none."""
    paths = [e["value"] for e in container["env"] if e["name"] == "RLJOB_NATS_JWT"]
    mounts = [m for m in container["volumeMounts"] if m["name"] == "nats-token"]
    volumes = [v["configMap"] for v in spec["volumes"] if v["name"] == "nats-token"]
    if not paths:
        assert not mounts
        return None
    ((path,), (mount,), (volume,)) = paths, mounts, volumes
    assert mount["readOnly"]
    assert "subPath" not in mount, "the kubelet would never replace the file"
    assert volume["name"] == "chain-sum-nats-tokens"
    ((item,)) = volume["items"]
    assert path == f"{mount['mountPath']}/{item['path']}"
    return str(item["key"])


def worker(spec: Manifest, role: Role) -> Manifest:
    (found,) = [c for c in spec["containers"] if c["name"] == role.value]
    return dict(found)


# ---------------------------------------------------------------------------------------------- credentials


@pytest.mark.parametrize("role", WORKERS)
def test_every_role_has_its_own_credentials(make_job: MakeJob, secured: ClusterDefaults, role: Role) -> None:
    job = make_job()
    spec = template(job, secured, role)
    assert secret_of(worker(spec, role)) == secret_name(job, Holder(role.value), ISSUER)
    tokens = {container["name"]: token_of(spec, {"env": [], **container}) for container in spec["containers"]}
    assert tokens == {container["name"]: None for container in spec["containers"]} | {role.value: role.value}


@pytest.mark.parametrize("role", WORKERS)
def test_where_nobody_asks_for_credentials_nobody_has_any(
    make_job: MakeJob, defaults: ClusterDefaults, secured: ClusterDefaults, role: Role
) -> None:
    for job, place in ((make_job(), defaults), (make_job(nats__url="nats://mine:4222"), secured)):
        spec = template(job, place, role)
        assert secret_of(worker(spec, role)) is None
        assert token_of(spec, worker(spec, role)) is None
        assert "initContainers" not in spec
    variables = {e["name"]: e.get("value") for e in worker(spec, role)["env"]}
    assert variables["RLJOB_NATS_URL"] == "nats://mine:4222"


@pytest.mark.parametrize("role", WORKERS)
@pytest.mark.parametrize("url", [{}, {"nats__url": "nats://mine:4222"}])
def test_a_user_s_own_secret_comes_before_ours(
    make_job: MakeJob, secured: ClusterDefaults, role: Role, url: dict[str, str]
) -> None:
    spec = template(make_job(nats__credentialsSecret="mine", **url), secured, role)
    containers = [worker(spec, role), *spec.get("initContainers", [])]
    assert {secret_of(container) for container in containers} == {"mine"}


@pytest.mark.parametrize("role", WORKERS)
def test_no_container_makes_streams_where_the_operator_does(
    make_job: MakeJob, secured: ClusterDefaults, role: Role
) -> None:
    assert "initContainers" not in template(make_job(), secured, role)


def test_with_credentials_of_its_own_a_job_s_coordinator_makes_its_streams(
    make_job: MakeJob, secured: ClusterDefaults
) -> None:
    job = make_job(nats__credentialsSecret="mine")
    spec = template(job, secured, Role.COORDINATOR)
    (streams,) = spec["initContainers"]
    assert streams["name"] == "streams"
    assert streams["command"] == ["python", "-m", "rljob_runtime.main", "streams"]
    assert secret_of(streams) == "mine"
    ours = worker(spec, Role.COORDINATOR)
    for field in ("image", "securityContext", "terminationMessagePath"):
        assert streams[field] == ours[field]
    assert "readinessProbe" not in streams
    for role in set(WORKERS) - {Role.COORDINATOR}:
        assert "initContainers" not in template(job, secured, role)


def test_a_user_s_init_containers_stay_before_ours(make_job: MakeJob, secured: ClusterDefaults) -> None:
    user = {"spec": {"initContainers": [{"name": "fetch", "image": "curl"}]}}
    spec = template(make_job(nats__credentialsSecret="mine"), secured, Role.COORDINATOR, user)
    assert [c["name"] for c in spec["initContainers"]] == ["fetch", "streams"]
    assert VARIABLE not in json.dumps(spec["initContainers"][0])


@pytest.mark.parametrize("role", WORKERS)
def test_credentials_of_storage_are_variables_of_the_workers_that_use_it(
    make_job: MakeJob, secured: ClusterDefaults, role: Role
) -> None:
    job = make_job(model__credentialsSecret="hub", weights__uri="s3://bucket/weights")
    spec = template(job, secured, role)
    holders = {
        c["name"] for c in [*spec["containers"], *spec.get("initContainers", [])] if "hub" in json.dumps(c)
    }
    assert holders == (set() if role in {Role.REWARD, Role.TRACKER} else {role.value})
    if holders:
        assert worker(spec, role)["envFrom"] == [{"secretRef": {"name": "hub"}}]


def test_a_job_in_an_object_store_mounts_no_claim(make_job: MakeJob, secured: ClusterDefaults) -> None:
    """Only what uses the store has its keys; `secured` has claims for jobs that name no place of their own."""
    cluster = dataclasses.replace(
        secured, weights_uri="pvc://rljob/w", checkpoint_uri="pvc://rljob/c", trainer_log_uri="", per_job=True,
        containers=True,
    )  # fmt: skip
    changes = {"model__uri": "s3://models/tiny", "model__credentialsSecret": "bucket"}
    checkpoints = {"trainer__checkpoint__uri": "s3://runs/c/"}
    whole = make_job(**changes, **checkpoints, weights__uri="s3://runs/w")
    resolved = resolve_job(whole, cluster)
    assert (resolved.claims, resolved.written_claims, resolved.samples_claims) == ((), (), ())
    config = resolved.config
    root = f"s3://runs/c/{config.job}-{config.uid}"
    assert (config.checkpoint_uri, config.trainer_log_uri, config.samples_uri) == (
        root, f"{root}/trainer-log", f"{root}/samples",
    )  # fmt: skip
    users = {
        "all": (whole, {Role.COORDINATOR, Role.ROLLOUT, Role.TRAINER, Role.REWARD}),
        "weights by NATS": (
            make_job(**changes, **checkpoints, weights__transport="Nats"), {Role.TRAINER, Role.REWARD},
        ),
        "no samples": (
            make_job(**changes, **checkpoints, weights__transport="Nats", samples__keepBytes=0), {Role.TRAINER},
        ),
    }  # fmt: skip
    for job, expected in users.values():
        have = set()
        for role in set(Role) - {Role.TRACKER, Role.ENVIRONMENT}:
            spec = template(job, cluster, role)
            assert "persistentVolumeClaim" not in json.dumps(spec)
            have |= {role} if "envFrom" in worker(spec, role) else set()
            assert all("envFrom" not in c for c in spec["containers"] if c["name"] == "scorer")
        assert have == expected


@pytest.mark.parametrize(
    ("more", "rewards_write"),
    [
        ({}, False),  # the checkpoints, and the samples beside them, are on no claim
        ({"trainer__checkpoint__uri": "pvc://runs/c"}, True),
        ({"trainer__checkpoint__uri": "pvc://runs/c", "samples__keepBytes": 0}, False),
    ],
    ids=["no claim", "samples", "no samples"],
)
@pytest.mark.parametrize("role", [role for role in WORKERS if role is not Role.TRACKER])
def test_only_the_trainer_may_write_to_claims_and_reward_workers_where_samples_are(
    make_job: MakeJob, secured: ClusterDefaults, role: Role, more: dict[str, object], rewards_write: bool
) -> None:
    job = make_job(model__uri="pvc://shared/model", weights__uri="pvc://runs/w", **more)
    spec = template(job, secured, role)
    mounts = {
        c["name"]: {
            m["mountPath"]: m.get("readOnly", False) for m in c["volumeMounts"] if "claims" in m["mountPath"]
        }
        for c in [*spec["containers"], *spec.get("initContainers", [])]
    }
    trains, scores = role is Role.TRAINER, role is Role.REWARD and rewards_write
    claims = {"/mnt/claims/shared": not trains, "/mnt/claims/runs": not (trains or scores)}
    others = {name: {} for name in mounts if name != role.value}
    assert mounts == {role.value: claims, **others}
    _, pod = audit_pod(job, secured)
    (audit,) = pod["spec"]["containers"]
    assert all(m["readOnly"] for m in audit["volumeMounts"] if "claims" in m["mountPath"])


# ---------------------------------------------------------------------------------------------- templates


@pytest.mark.parametrize("role", WORKERS)
def test_the_site_s_template_lies_under_the_user_s(
    make_job: MakeJob, defaults: ClusterDefaults, role: Role
) -> None:
    laid = {
        "metadata": {"labels": {"team": "site"}},
        "spec": {
            "nodeSelector": {"zone": "a", "gpu": "any"},
            "priorityClassName": "low",
            "containers": [
                {"name": "worker", "imagePullPolicy": "Never", "env": [{"name": "X", "value": "site"}]},
                {"name": "logs", "image": "logs"},
            ],
        },
    }
    user = {
        "spec": {
            "nodeSelector": {"gpu": "l40s"},
            "priorityClassName": None,
            "containers": [{"name": role.value, "env": [{"name": "X", "value": "user"}]}],
        }
    }
    place = dataclasses.replace(defaults, template=laid)
    spec = template(make_job(), place, role, user)
    assert spec["nodeSelector"] == {"zone": "a", "gpu": "l40s"}
    assert "priorityClassName" not in spec
    assert [c["name"] for c in spec["containers"]] == [role.value, "logs"]
    ours = worker(spec, role)
    assert ours["imagePullPolicy"] == "Never"
    assert {"name": "X", "value": "user"} in ours["env"]
    assert laid["spec"]["containers"][0]["name"] == "worker", "what is given stays as it is"  # type: ignore[index]


@pytest.mark.parametrize(
    ("user", "field"),
    [
        ({"spec": None}, "spec.x.spec"),
        ({"spec": {"containers": None}}, "spec.x.spec.containers"),
        ({"spec": {"volumes": None}}, "spec.x.spec.volumes"),
        ({"spec": {"containers": [{"name": "reward", "env": None}]}}, "spec.x.spec.containers[reward].env"),
        ({"spec": {"containers": [{"name": []}]}}, "spec.x.spec.containers[0]"),
        ({"spec": {"tolerations": 3}}, "spec.x.spec.tolerations"),
        ({"spec": {"tolerations": ["x"]}}, "spec.x.spec.tolerations"),
    ],
)
def test_a_template_that_no_pod_can_follow_is_refused_by_its_field(
    make_job: MakeJob, secured: ClusterDefaults, user: Manifest, field: str
) -> None:
    with pytest.raises(SpecError) as refused:
        template(make_job(), secured, Role.REWARD, user)
    assert refused.value.path == field


LOST = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, 0),
        ([], 0),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], 1),
        ([{"operator": "Exists"}], 1),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 5}], 1),
    ],
)
def test_lost_nodes_are_tolerated_for_a_while_whatever_else_is(
    make_job: MakeJob, defaults: ClusterDefaults, given: list[Manifest] | None, kept: int
) -> None:
    spec = template(make_job(), defaults, Role.ROLLOUT, {"spec": {"tolerations": given}})
    tolerations = spec["tolerations"]
    assert tolerations[:kept] == (given or [])
    keys = [toleration.get("key") for toleration in tolerations]
    assert {key for key in keys if key in LOST} == LOST
    assert len(keys) == len(set(keys))
    seconds = {t["key"]: t.get("tolerationSeconds") for t in tolerations if t.get("key") in LOST}
    own = [t for t in given or [] if t.get("key") in LOST]
    assert seconds == dict.fromkeys(LOST, 30) | {t["key"]: t["tolerationSeconds"] for t in own}


def restricted(spec: Manifest) -> None:
    """What Pod Security's level Restricted asks for."""
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert spec["automountServiceAccountToken"] is False
    assert not spec.get("shareProcessNamespace")
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "projected"}
    assert all(volume.keys() - {"name"} <= allowed for volume in spec["volumes"])
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("role", WORKERS)
def test_pods_are_restricted(make_job: MakeJob, secured: ClusterDefaults, role: Role) -> None:
    restricted(template(make_job(model__uri="pvc://shared/model"), secured, role))


# ---------------------------------------------------------------------------------------------- the audit's pod


def audit_pod(job: RLJob, defaults: ClusterDefaults) -> tuple[Manifest, Manifest]:
    """The ConfigMap, and the Pod that is in it."""
    found = audit_config_map(resolve_job(job, defaults))
    return found, json.loads(found["data"][POD_FILE])


def test_the_audit_s_pod_is_restricted_and_only_looks_on(make_job: MakeJob, secured: ClusterDefaults) -> None:
    job = make_job(model__uri="pvc://shared/model", weights__uri="pvc://runs/w")
    config_map, pod = audit_pod(job, secured)
    spec = pod["spec"]
    restricted(spec)
    (container,) = spec["containers"]
    assert "initContainers" not in spec
    assert secret_of(container) == secret_name(job, Holder.READER, ISSUER)
    assert container["command"] == ["rljob", "audit", "/etc/rljob/config.json"]
    assert spec["restartPolicy"] == "Never"
    assert "serviceAccountName" not in spec, "the workers' account goes when the job ends"
    (mounted,) = [v for v in spec["volumes"] if v["name"] == "config"]
    assert mounted["configMap"]["name"] == config_map["metadata"]["name"] == "chain-sum-audit"
    claims = {
        v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v
    }
    assert claims == {"shared", "runs"}
    assert JobConfig.model_validate_json(config_map["data"]["config.json"]).uid == "u-1"


def test_the_audit_s_pod_has_the_configurations_that_the_workers_mount(
    make_job: MakeJob, secured: ClusterDefaults
) -> None:
    job = resolve_job(make_job(), secured)
    _, pod = audit_pod(job.job, secured)
    (container,) = pod["spec"]["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "worker-configs"]
    assert mount == {"name": "worker-configs", "mountPath": "/etc/rljob-workers", "readOnly": True}
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "worker-configs"]
    sources = [source["configMap"] for source in volume["projected"]["sources"]]
    assert all(source["optional"] for source in sources), "they go when the job ends"
    pools = {p.name: {"metadata": {"uid": "p-1"}, "spec": {}} for p in job.spec.rollout.pools}
    made = desired(job, Targets(attempt=None, failures=0, pools=pools))
    config_maps = {
        m["metadata"]["name"] for m in made if m["kind"] == "ConfigMap" and "config.json" in m["data"]
    }
    assert {source["name"] for source in sources} == config_maps - {"chain-sum-audit"}
    for source in sources:
        assert source["items"] == [{"key": "config.json", "path": f"{source['name']}.json"}]


def without_worker_configs(pod: Manifest) -> Manifest:
    """The audit's Pod as the other Pods are: these do not read what the workers mount."""
    spec = pod["spec"]
    (container,) = spec["containers"]
    mounts = [m for m in container["volumeMounts"] if m["name"] != "worker-configs"]
    volumes = [v for v in spec["volumes"] if v["name"] != "worker-configs"]
    return {
        **pod,
        "spec": {**spec, "containers": [{**container, "volumeMounts": mounts}], "volumes": volumes},
    }


def test_the_backup_s_pod_is_the_audit_s_with_another_command(
    make_job: MakeJob, secured: ClusterDefaults
) -> None:
    job = make_job(
        model__uri="pvc://shared/model", weights__uri="s3://bucket/w", model__credentialsSecret="s3"
    )
    config_map, audit = audit_pod(job, secured)
    audit = without_worker_configs(audit)
    backup = json.loads(config_map["data"][BACKUP_FILE])
    (container,), (audits,) = backup["spec"]["containers"], audit["spec"]["containers"]
    assert backup["metadata"]["name"] == "chain-sum-backup"
    assert backup["metadata"]["labels"]["app.kubernetes.io/name"] == "rljob-backup"
    assert container["command"] == ["rljob", "backup", "/etc/rljob/config.json", "TARGET"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    same = {"name": "", "command": ""}
    assert {**container, **same} == {**audits, **same}
    assert {**backup["spec"], "containers": []} == {**audit["spec"], "containers": []}


def test_the_restore_s_pod_writes_where_the_trainer_does(make_job: MakeJob, secured: ClusterDefaults) -> None:
    job = make_job(model__uri="pvc://shared/model", weights__uri="pvc://runs/w")
    config_map, audit = audit_pod(job, secured)
    audit = without_worker_configs(audit)
    restore = json.loads(config_map["data"][RESTORE_FILE])
    restricted(restore["spec"])
    (container,), (audits,) = restore["spec"]["containers"], audit["spec"]["containers"]
    assert restore["metadata"]["name"] == "chain-sum-restore"
    assert container["command"] == ["rljob", "restore", "TARGET", "/etc/rljob/config.json"]
    assert secret_of(container) == secret_name(job, Holder.RESTORER, ISSUER)
    assert container["volumeMounts"] == [
        {k: v for k, v in mount.items() if k != "readOnly" or "claim" not in mount["name"]}
        for mount in audits["volumeMounts"]
    ]
    tokens = [token_of(spec, spec["containers"][0]) for spec in (restore["spec"], audit["spec"])]
    assert tokens == ["restorer", "reader"]
    for pod in (restore, audit):
        pod["spec"]["volumes"] = [v for v in pod["spec"]["volumes"] if v["name"] != "nats-token"]
    assert {**restore["spec"], "containers": []} == {**audit["spec"], "containers": []}


def test_the_audit_s_pod_is_not_taken_for_a_worker_of_the_job(
    make_job: MakeJob, secured: ClusterDefaults
) -> None:
    config_map, pod = audit_pod(make_job(), secured)
    assert config_map["metadata"]["labels"]["rljob.dev/job"] == "chain-sum"
    assert config_map["metadata"]["labels"]["rljob.dev/kept"] == "true"
    assert not [label for label in pod["metadata"]["labels"] if label.startswith("rljob.dev/")]


@pytest.mark.parametrize(
    ("changes", "secret"),
    [({"nats__credentialsSecret": "mine"}, "mine"), ({"nats__url": "nats://mine:4222"}, None)],
)
def test_the_audit_asks_the_job_s_own_server(
    make_job: MakeJob, secured: ClusterDefaults, changes: dict[str, Any], secret: str | None
) -> None:
    _, pod = audit_pod(make_job(**changes), secured)
    assert secret_of(pod["spec"]["containers"][0]) == secret


def test_a_coordinator_s_template_reaches_the_audit(make_job: MakeJob, secured: ClusterDefaults) -> None:
    user = {
        "spec": {
            "nodeSelector": {"zone": "a"},
            "containers": [
                {"name": "coordinator", "image": "mine", "resources": {"limits": {"cpu": "1"}}},
                {"name": "sidecar", "image": "logs"},
            ],
        }
    }
    _, pod = audit_pod(make_job(coordinator__template=user), secured)
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["resources"]) == ("mine", {"limits": {"cpu": "1"}})
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}
