"""The pods that play a job's episodes: what they have and may reach, and which change restarts what."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from small_job import MakeJob
from test_worker_pod import ISSUER

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.port import Manifest, Ref
from rljob_runtime.environments.client import setup_of
from rljob_runtime.environments.pod_server import setup_in

DEPLOYMENT = "Deployment chain-sum-environment"


@pytest.fixture
def cluster(defaults: ClusterDefaults) -> ClusterDefaults:
    return dataclasses.replace(defaults, issuer=ISSUER, per_job=True, containers=True)


def playing(make_job: MakeJob, **environment: Any) -> RLJob:
    return make_job(
        rollout__environment={"name": "game:Game", **environment}, reward={"functions": ["environment"]}
    )


def made(job: RLJob, defaults: ClusterDefaults) -> dict[str, Manifest]:
    pools = {pool.name: {"metadata": {"uid": "u-2"}, "spec": {}} for pool in job.spec.rollout.pools}
    found = desired(resolve_job(job, defaults), Targets(1, 0, pools))
    return {str(Ref.of(child)).replace(f"{job.metadata.namespace}/", ""): child for child in found}


def variables(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def test_a_job_without_an_environment_has_no_such_pods(make_job: MakeJob, cluster: ClusterDefaults) -> None:
    assert not [name for name in made(make_job(), cluster) if "environment" in name]


def test_on_a_machine_each_engine_plays_by_itself(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    found = made(playing(make_job), defaults)
    assert not [name for name in found if "environment" in name]
    (rollout,) = found["Deployment chain-sum-rollout-cpu"]["spec"]["template"]["spec"]["containers"]
    assert "RLJOB_ENVIRONMENT_ADDRESS" not in variables(rollout)


def test_pods_know_what_to_play_and_workers_where(make_job: MakeJob, cluster: ClusterDefaults) -> None:
    job = playing(
        make_job, options={"decay": 0.5}, timeoutSeconds=7, network=True, replicas=3, image="game:1"
    )
    found = made(job, cluster)
    deployment, service = found[DEPLOYMENT], found["Service chain-sum-environment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (deployment["spec"]["replicas"], container["image"]) == (3, "game:1")
    assert setup_in(variables(container)) == setup_of(resolve_job(job, cluster).config)
    assert container["command"] == ["python", "-m", "rljob_runtime.environments", ":7450"]
    (rollout,) = found["Deployment chain-sum-rollout-cpu"]["spec"]["template"]["spec"]["containers"]
    address = f"chain-sum-environment.{job.metadata.namespace}.svc:7450"
    assert variables(rollout)["RLJOB_ENVIRONMENT_ADDRESS"] == address
    assert service["spec"]["clusterIP"] == "None"
    budget = found["PodDisruptionBudget chain-sum-environment"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": service["spec"]["selector"]}}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    other = [c for name, c in found.items() if c["kind"] == "Deployment" and name != DEPLOYMENT]
    assert not any(
        service["spec"]["selector"].items() <= c["spec"]["template"]["metadata"]["labels"].items()
        for c in other
    )


def test_pods_have_the_image_of_the_job_unless_they_have_one(
    make_job: MakeJob, cluster: ClusterDefaults
) -> None:
    deployment = made(playing(make_job), cluster)[DEPLOYMENT]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == cluster.image
    assert deployment["spec"]["replicas"] == 1


def test_a_server_that_stands_still_is_not_alive(
    make_job: MakeJob, cluster: ClusterDefaults, tmp_path: Path
) -> None:
    container = made(playing(make_job), cluster)[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]
    *command, file = container["livenessProbe"]["exec"]["command"]
    assert file == variables(container)["RLJOB_READY_FILE"]

    def alive() -> bool:
        return subprocess.run([*command, str(ready)], check=False).returncode == 0

    ready = tmp_path / "ready"
    assert alive()  # it is starting, or draining
    ready.touch()
    assert alive()
    minute_ago = time.time() - 65.0
    os.utime(ready, (minute_ago, minute_ago))
    assert not alive()


def test_pods_have_nothing_of_the_jobs_but_their_own_key(make_job: MakeJob, cluster: ClusterDefaults) -> None:
    job = make_job(
        rollout__environment={"name": "game:Game"},
        reward={"functions": ["environment"]},
        model={"uri": "pvc://models/tiny", "credentialsSecret": "store"},
        weights__uri="pvc://runs/w",
        nats__credentialsSecret="mine",
    )
    spec = made(job, cluster)[DEPLOYMENT]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "initContainers" not in spec
    assert "envFrom" not in container
    assert {entry["name"] for entry in container["env"]} == {
        "RLJOB_ENVIRONMENT", "RLJOB_ENVIRONMENT_KEYS", "RLJOB_READY_FILE", "RLJOB_TERMINATION_LOG"
    }  # fmt: skip
    assert not any("valueFrom" in entry for entry in container["env"])
    volumes = {volume["name"]: set(volume) - {"name"} for volume in spec["volumes"]}
    keys = {"environment-keys": {"secret"}}
    assert volumes == {**{name: {"emptyDir"} for name in ("run", "shared-memory", "temporary")}, **keys}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def mounted(child: Manifest, secrets: dict[str, Manifest]) -> dict[str, str]:
    """The files of the keys that a Deployment's container has."""
    (volume,) = [v for v in child["spec"]["template"]["spec"]["volumes"] if v["name"] == "environment-keys"]
    data = secrets[f"Secret {volume['secret']['secretName']}"]["data"]
    return {name: base64.b64decode(text).decode() for name, text in data.items()}


def test_each_end_has_a_key_of_its_own_and_of_the_job_alone(
    make_job: MakeJob, cluster: ClusterDefaults
) -> None:
    def ends(job: RLJob) -> tuple[dict[str, str], dict[str, str]]:
        found = made(job, cluster)
        return mounted(found[DEPLOYMENT], found), mounted(found["Deployment chain-sum-rollout-cpu"], found)

    pods, workers = ends(playing(make_job))
    assert pods.keys() == workers.keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert pods["ca.crt"] == workers["ca.crt"]
    assert pods["tls.key"] != workers["tls.key"]
    job = playing(make_job)
    assert (pods, workers) == ends(job)  # every run makes the same
    metadata = job.metadata.model_copy(update={"uid": "u-9"})
    nats = job.spec.nats.model_copy(update={"credentials_generation": 1})
    others = [job.model_copy(update={"metadata": metadata})]
    others.append(job.model_copy(update={"spec": job.spec.model_copy(update={"nats": nats})}))
    for other in others:
        assert {end["tls.key"] for end in ends(other)}.isdisjoint({pods["tls.key"], workers["tls.key"]})
        assert ends(other)[0]["ca.crt"] != pods["ca.crt"]


def test_an_operator_without_a_seed_refuses_such_a_job(make_job: MakeJob, cluster: ClusterDefaults) -> None:
    with pytest.raises(SpecError, match=r"^spec\.rollout\.environment: needs keys by which"):
        made(playing(make_job), dataclasses.replace(cluster, issuer=None))


def test_options_that_no_variable_can_hold_are_refused(make_job: MakeJob, cluster: ClusterDefaults) -> None:
    with pytest.raises(SpecError, match=r"^spec\.rollout\.environment\.options: take 100\d+ bytes"):
        made(playing(make_job, options={"text": "x" * 100_000}), cluster)


# ---------------------------------------------------------------------------------------------- network


def test_rollout_workers_alone_come_in_and_nothing_goes_out(
    make_job: MakeJob, cluster: ClusterDefaults
) -> None:
    job = make_job(
        rollout__environment={"name": "game:Game"},
        reward={"functions": ["environment"]},
        networking={"egress": [{"cidr": "10.0.0.0/8"}]},
    )
    found = made(job, dataclasses.replace(cluster, metrics_port=9464))
    spec = found["NetworkPolicy chain-sum-environment"]["spec"]
    pods = {"rljob.dev/job": "chain-sum", "rljob.dev/role": "environment"}
    assert spec == {
        "podSelector": {"matchLabels": pods},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {**pods, "rljob.dev/role": "rollout"}}}],
                "ports": [{"protocol": "TCP", "port": 7450}],
            }
        ],
        "egress": [],
    }
    workers = found["NetworkPolicy chain-sum-workers"]["spec"]
    (others,) = workers["podSelector"]["matchExpressions"]
    assert others == {"key": "rljob.dev/role", "operator": "NotIn", "values": ["environment"]}
    to_pods = {"to": [{"podSelector": {"matchLabels": pods}}], "ports": [{"protocol": "TCP", "port": 7450}]}
    assert to_pods in workers["egress"]
    without = made(make_job(), cluster)["NetworkPolicy chain-sum-workers"]["spec"]
    assert "matchExpressions" not in without["podSelector"]
    assert to_pods not in without["egress"]


def test_an_environment_with_a_network_reaches_what_the_job_names_and_no_nats(
    make_job: MakeJob, cluster: ClusterDefaults
) -> None:
    job = make_job(
        rollout__environment={"name": "game:Game", "network": True},
        reward={"functions": ["environment"]},
        networking={"egress": [{"cidr": "10.0.0.0/8"}]},
    )
    egress = made(job, cluster)["NetworkPolicy chain-sum-environment"]["spec"]["egress"]
    assert {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]} in egress
    assert "4222" not in json.dumps(egress)


# ---------------------------------------------------------------------------------------------- changes


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ({"replicas": 0}, set()),
        ({"image": "game:2"}, {DEPLOYMENT}),
        ({"template": {"metadata": {"labels": {"a": "b"}}}}, {DEPLOYMENT}),
    ],
    ids=str,
)
def test_a_change_of_where_it_runs_restarts_nothing_else(
    make_job: MakeJob, cluster: ClusterDefaults, change: dict[str, Any], restarts: set[str]
) -> None:
    before, after = made(playing(make_job), cluster), made(playing(make_job, **change), cluster)
    workloads = [name for name, child in before.items() if child["kind"] in {"Deployment", "Job"}]
    assert len(workloads) == 5
    changed = {n for n in workloads if before[n]["spec"]["template"] != after[n]["spec"]["template"]}
    assert changed == restarts


def test_templates_of_the_cluster_and_the_user_are_laid_over_it(
    make_job: MakeJob, cluster: ClusterDefaults
) -> None:
    of_cluster = {
        "spec": {
            "priorityClassName": "low",
            "containers": [
                {"name": "worker", "env": [{"name": "TOKEN", "value": "x"}], "imagePullPolicy": "Never"},
                {"name": "scorer", "workingDir": "/scorer"},
                {"name": "environment", "workingDir": "/games"},
            ],
        }
    }
    own = {"spec": {"priorityClassName": "high", "terminationGracePeriodSeconds": 5}}
    found = made(playing(make_job, template=own), dataclasses.replace(cluster, template=of_cluster))
    spec = found[DEPLOYMENT]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("high", 5)
    assert (container["imagePullPolicy"], container["workingDir"]) == ("Never", "/games")
    assert "TOKEN" not in variables(container)
    for name in ("coordinator", "reward", "rollout-cpu"):
        others = found[f"Deployment chain-sum-{name}"]["spec"]["template"]["spec"]["containers"]
        assert "environment" not in {c["name"] for c in others}
    with pytest.raises(SpecError, match=r"^spec\.rollout\.environment\.template\.spec\.containers"):
        made(playing(make_job, template={"spec": {"containers": {}}}), cluster)


@pytest.mark.parametrize(("seconds", "grace"), [(20, 20), (86_400, 600)])
def test_a_pod_may_finish_its_episodes(
    make_job: MakeJob, cluster: ClusterDefaults, seconds: int, grace: int
) -> None:
    spec = made(playing(make_job, episodeSeconds=seconds), cluster)[DEPLOYMENT]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == grace
