"""What should exist, and which change of the spec reaches which pods."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.children.trainer_gang import trainer_hash
from rljob_operator.children.worker_pod import config_hash
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import CONFIG_HASH, Role

MakeJob = Callable[..., RLJob]


def pool(name: str, **annotations: str) -> Manifest:
    return {"metadata": {"uid": f"uid-{name}", "annotations": annotations}, "spec": {"replicas": 5}}


def children(job: RLJob, defaults: ClusterDefaults, **targets: Any) -> dict[str, Manifest]:
    targets = {"attempt": 1, "failures": 0, "pools": {"cpu": pool("cpu")}, **targets}
    return {str(Ref.of(m)): m for m in desired(resolve_job(job, defaults), Targets(**targets))}


def container(child: Manifest) -> Manifest:
    found: Manifest = child["spec"]["template"]["spec"]["containers"][0]
    return found


def environment(child: Manifest) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in container(child)["env"]}


def test_every_role_has_its_child(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    found = children(make_job(), defaults)
    assert sorted(found) == [
        "ConfigMap chain-sum-config",
        "ConfigMap chain-sum-rollout-cpu-config",
        "Deployment chain-sum-coordinator",
        "Deployment chain-sum-reward",
        "Deployment chain-sum-rollout-cpu",
        "Job chain-sum-trainer-1",
        "NetworkPolicy chain-sum-workers",
        "PodDisruptionBudget chain-sum-rollout-cpu",
        "RolloutPool chain-sum-rollout-cpu",
        "ServiceAccount chain-sum-worker",
    ]
    for child in found.values():
        assert child["metadata"]["labels"]["rljob.dev/job"] == "chain-sum"
        assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rljob-operator"
    owners = {name: m["metadata"]["ownerReferences"][0] for name, m in found.items()}
    assert owners["Job chain-sum-trainer-1"]["uid"] == "u-1"
    assert owners["Deployment chain-sum-rollout-cpu"]["uid"] == "uid-cpu"
    assert found["Deployment chain-sum-coordinator"]["spec"]["strategy"] == {"type": "Recreate"}


def test_selectors_match_the_pods_and_only_their_own(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    job = make_job(rollout__pools=[{"name": "a"}, {"name": "b"}])
    found = children(job, defaults, pools={"a": pool("a"), "b": pool("b")})
    deployments = [m for name, m in found.items() if name.startswith("Deployment")]
    for owner in deployments:
        selector = owner["spec"]["selector"]["matchLabels"].items()
        selected = [m for m in deployments if selector <= m["spec"]["template"]["metadata"]["labels"].items()]
        assert selected == [owner]


def test_a_pool_owns_nothing_before_it_has_a_uid(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    found = children(make_job(), defaults, pools={})
    assert "RolloutPool chain-sum-rollout-cpu" in found
    assert "Deployment chain-sum-rollout-cpu" not in found


def test_workers_load_the_whole_configuration(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    job = make_job(weights__uri="/elsewhere")
    found = children(job, defaults)
    for name in ("ConfigMap chain-sum-config", "ConfigMap chain-sum-rollout-cpu-config"):
        config = JobConfig.model_validate_json(found[name]["data"]["config.json"])
        assert config.spec == job.spec
        assert (config.weights_uri, config.checkpoint_uri, config.uid) == ("/elsewhere", "/c", "u-1")
    rollout = environment(found["Deployment chain-sum-rollout-cpu"])
    assert rollout["RLJOB_POOL"] == "cpu"
    assert rollout["RLJOB_NATS_URL"] == "nats://127.0.0.1:4222"
    assert environment(found["Job chain-sum-trainer-1"])["RLJOB_ATTEMPT"] == "1"
    commands = {
        m["command"][-1]: m["command"]
        for m in (container(c) for n, c in found.items() if n.startswith("Dep"))
    }
    assert commands["coordinator"] == ["python", "-m", "rljob_runtime.main", "coordinator"]
    assert set(commands) == {"coordinator", "reward", "rollout"}


@pytest.mark.parametrize(
    ("nodes", "ranks", "words"),
    [
        (1, 1, ["-m", "rljob_runtime.main", "trainer"]),
        (
            1,
            2,
            [
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                "--max-restarts=0",
                "rljob_runtime.main",
            ],
        ),
        (2, 1, ["--nnodes=2", "--node-rank=$(JOB_COMPLETION_INDEX)", "--master-addr=$(MASTER_ADDR)"]),
    ],
)
def test_a_launcher_is_used_for_more_than_one_rank_only(
    make_job: MakeJob, defaults: ClusterDefaults, nodes: int, ranks: int, words: list[str]
) -> None:
    job = make_job(trainer__numNodes=nodes, trainer__numProcPerNode=ranks)
    gang = children(job, defaults)["Job chain-sum-trainer-1"]
    assert set(words) <= set(container(gang)["command"])
    assert ("torch.distributed.run" in container(gang)["command"]) == (nodes * ranks > 1)
    assert (gang["spec"]["backoffLimit"], gang["spec"]["completions"], gang["spec"]["parallelism"]) == (
        0,
        nodes,
        nodes,
    )
    address = "chain-sum-trainer-1-0.chain-sum-trainer" if nodes > 1 else None
    assert environment(gang).get("MASTER_ADDR") == address
    assert ("Service chain-sum-trainer" in children(job, defaults)) == (nodes > 1)


COORDINATOR, ROLLOUT, REWARD, TRAINER = Role.COORDINATOR, Role.ROLLOUT, Role.REWARD, Role.TRAINER
POOL = {"name": "cpu", "replicas": 2}


@pytest.mark.parametrize(
    ("change", "rolled"),
    [
        ({"rollout__pools": [{**POOL, "replicas": 7}]}, set()),
        ({"rollout__pools": [{**POOL, "costPerHour": "2"}]}, set()),
        ({"rollout__pools": [POOL, {"name": "another"}]}, set()),
        ({"reward__replicas": 4}, set()),
        ({"backoffLimit": 9}, set()),
        ({"activeDeadlineSeconds": 9}, set()),
        ({"suspend": True}, set()),
        ({"steps": 9}, {COORDINATOR}),
        ({"reward__timeoutSeconds": 1.5}, {REWARD}),
        ({"reward__functions": ["math_verify"]}, {REWARD, COORDINATOR}),
        ({"rollout__sampling__temperature": 0.5}, {ROLLOUT, COORDINATOR, TRAINER}),
        ({"rollout__pools": [{**POOL, "engine": {"options": {"slots": 3}}}]}, {ROLLOUT}),
        ({"algorithm__learningRate": 0.5}, {TRAINER, COORDINATOR}),
        ({"trainer__checkpoint__everySteps": 3}, {TRAINER, COORDINATOR}),
        ({"model__uri": "/other"}, {TRAINER, COORDINATOR, ROLLOUT, REWARD}),
    ],
)
def test_a_change_rolls_those_who_read_it(
    make_job: MakeJob, defaults: ClusterDefaults, change: dict[str, Any], rolled: set[Role]
) -> None:
    def hashes(job: RLJob) -> dict[Role, str]:
        found = {role: config_hash(resolve_job(job, defaults), role) for role in (COORDINATOR, REWARD)}
        return {
            **found,
            ROLLOUT: config_hash(resolve_job(job, defaults), ROLLOUT, job.spec.rollout.pools[0]),
            TRAINER: trainer_hash(resolve_job(job, defaults)),
        }

    before, after = hashes(make_job()), hashes(make_job(**change))
    assert {role for role in before if before[role] != after[role]} == rolled


def test_replicas_are_in_no_pod_template(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    before = children(make_job(), defaults)
    after = children(make_job(rollout__pools=[{**POOL, "replicas": 7}], reward__replicas=4), defaults)
    for name in (
        "Deployment chain-sum-rollout-cpu",
        "Deployment chain-sum-reward",
        "Deployment chain-sum-coordinator",
    ):
        assert before[name]["spec"]["template"] == after[name]["spec"]["template"]
    assert after["Deployment chain-sum-reward"]["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    ("spec", "annotation", "replicas"),
    [
        ({"replicas": 2}, "2", 5),  # scaled to 5 by hand: it holds
        ({"replicas": 3}, "2", 3),  # the RLJob's own value has changed: it wins
        ({"scaling": {"minReplicas": 1, "maxReplicas": 8}}, "scaled", 5),
        # Handed over to the scaler: the engines stay, as far as its bounds allow.
        ({"scaling": {"minReplicas": 2, "maxReplicas": 8}}, "2", 5),
        ({"scaling": {"minReplicas": 6, "maxReplicas": 8}}, "2", 6),
        ({"scaling": {"minReplicas": 2, "maxReplicas": 4}}, "2", 4),
        ({"replicas": 2}, "scaled", 2),  # and taken back
    ],
)
def test_whose_replica_count_a_pool_has(
    make_job: MakeJob, defaults: ClusterDefaults, spec: dict[str, Any], annotation: str, replicas: int
) -> None:
    job = make_job(rollout__pools=[{"name": "cpu", **spec}])
    found = children(job, defaults, pools={"cpu": pool("cpu", **{"rljob.dev/spec-replicas": annotation})})
    assert found["RolloutPool chain-sum-rollout-cpu"]["spec"]["replicas"] == replicas
    assert found["Deployment chain-sum-rollout-cpu"]["spec"]["replicas"] == replicas


def test_a_pool_without_engines_is_handed_over_with_one_that_a_scaler_can_start_from(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    """Kubernetes' HorizontalPodAutoscaler takes no notice of a pool of 0."""
    job = make_job(rollout__pools=[{"name": "cpu", "scaling": {"minReplicas": 1, "maxReplicas": 8}}])
    empty = pool("cpu", **{"rljob.dev/spec-replicas": "0"})
    empty["spec"]["replicas"] = 0
    found = children(job, defaults, pools={"cpu": empty})
    assert found["RolloutPool chain-sum-rollout-cpu"]["spec"]["replicas"] == 1


@pytest.mark.parametrize(("least", "most", "engines"), [(1, 4, 4), (1, 5, 5), (6, 9, 6), (5, 5, 5)])
def test_the_job_s_bounds_hold_and_the_scaler_s_figure_stays(
    make_job: MakeJob, defaults: ClusterDefaults, least: int, most: int, engines: int
) -> None:
    scaling = {"minReplicas": least, "maxReplicas": most}
    job = make_job(rollout__pools=[{"name": "cpu", "scaling": scaling}])
    found = children(job, defaults, pools={"cpu": pool("cpu", **{"rljob.dev/spec-replicas": "scaled"})})
    manifest = found["RolloutPool chain-sum-rollout-cpu"]
    assert manifest["spec"]["replicas"] == 5
    assert manifest["spec"]["scaling"] == {"policy": "External", "owner": "Hub", **scaling}
    assert found["Deployment chain-sum-rollout-cpu"]["spec"]["replicas"] == engines
    assert found["PodDisruptionBudget chain-sum-rollout-cpu"]["spec"]["minAvailable"] == engines - 1


def test_a_drain_evicts_all_engines_of_a_spot_pool_at_once(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    pools = [{"name": "spot", "replicas": 4, "interruptionsPerHour": 0.5}, {"name": "stays", "replicas": 4}]
    found = children(make_job(rollout__pools=pools), defaults)
    assert found["PodDisruptionBudget chain-sum-rollout-spot"]["spec"]["minAvailable"] == 0
    assert found["PodDisruptionBudget chain-sum-rollout-stays"]["spec"]["minAvailable"] == 3


def test_a_template_patch_is_merged_by_name(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    patch = {
        "metadata": {"labels": {"team": "rl"}},
        "spec": {
            "nodeSelector": {"gpu": "l40s"},
            "containers": [
                {
                    "name": "rollout",
                    "resources": {"limits": {"cpu": "2"}},
                    "env": [
                        {"name": "RLJOB_NATS_URL", "value": "nats://other"},
                        {"name": "MINE", "value": "1"},
                    ],
                    "readinessProbe": None,
                },
                {"name": "sidecar", "image": "logs"},
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        },
    }
    job = make_job(rollout__pools=[{"name": "cpu", "template": patch}])
    template = children(job, defaults)["Deployment chain-sum-rollout-cpu"]["spec"]["template"]
    ours, sidecar = template["spec"]["containers"]
    variables = {e["name"]: e.get("value") for e in ours["env"]}
    assert (variables["RLJOB_NATS_URL"], variables["MINE"], variables["RLJOB_POOL"]) == (
        "nats://other",
        "1",
        "cpu",
    )
    assert ours["command"][-1] == "rollout"
    assert "readinessProbe" not in ours
    assert sidecar == {"name": "sidecar", "image": "logs"}
    assert [v["name"] for v in template["spec"]["volumes"]] == [
        "config",
        "run",
        "shared-memory",
        "temporary",
        "cache",
    ]
    assert template["metadata"]["labels"]["team"] == "rl"
    assert template["metadata"]["labels"]["rljob.dev/pool"] == "cpu"
    assert template["spec"]["nodeSelector"] == {"gpu": "l40s"}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"containers": {"name": "trainer"}}}, "spec.trainer.template.spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.trainer.template.spec.containers[0]"),
        ({"spec": "x"}, "spec.trainer.template.spec"),
        (
            {"spec": {"containers": [{"name": "trainer", "securityContext": 3}]}},
            "spec.trainer.template.spec.containers[trainer].securityContext",
        ),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_with_its_path(
    make_job: MakeJob, defaults: ClusterDefaults, template: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError) as caught:
        children(make_job(trainer__template=template), defaults)
    assert caught.value.path == path


def test_manifests_are_json_and_names_fit(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    job = make_job(rollout__pools=[{"name": "p" * 40}], trainer__numNodes=2)
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": "j" * 52})})
    found = children(job, defaults, attempt=123, pools={"p" * 40: pool("p")})
    assert len(found) == 11
    for child in found.values():
        assert json.loads(json.dumps(child)) == child
        assert len(child["metadata"]["name"]) <= 52
        assert all(len(value) <= 63 for value in child["metadata"]["labels"].values())
    other = children(job, defaults, attempt=124, pools={})
    assert {n for n in other if n.startswith("Job")}.isdisjoint(found)
    assert CONFIG_HASH in next(m for n, m in found.items() if n.startswith("Job"))["metadata"]["annotations"]


def test_claims_are_mounted_and_every_job_has_its_own_folder(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    job = make_job(
        model__uri="pvc://models/tiny", weights__uri="pvc://shared/runs", trainer__checkpoint__uri="/c"
    )
    cluster = dataclasses.replace(defaults, per_job=True, trainer_log_uri="")
    config = resolve_job(job, cluster).config
    assert config.spec.model.uri == "/mnt/claims/models/tiny"
    assert config.weights_uri == "/mnt/claims/shared/runs/chain-sum-u-1"
    assert config.checkpoint_uri == "/c/chain-sum-u-1"
    assert config.trainer_log_uri == "/c/chain-sum-u-1/trainer-log"
    found = children(job, cluster)["Deployment chain-sum-coordinator"]["spec"]["template"]["spec"]
    claims = {v["name"]: v["persistentVolumeClaim"] for v in found["volumes"] if "persistentVolumeClaim" in v}
    assert claims == {"claim-models": {"claimName": "models"}, "claim-shared": {"claimName": "shared"}}
    mounts = {m["name"]: m["mountPath"] for m in found["containers"][0]["volumeMounts"]}
    assert mounts["claim-shared"] == "/mnt/claims/shared"


def test_without_a_place_for_weights_the_field_is_named(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    with pytest.raises(SpecError, match=r"spec\.weights\.uri: is needed"):
        resolve_job(make_job(), dataclasses.replace(defaults, weights_uri=""))
