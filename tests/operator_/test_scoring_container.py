"""What a reward function can see and reach in its pod, as the operator renders the pod."""

from __future__ import annotations

import dataclasses
import json

import pytest
from small_job import MakeJob
from test_worker_pod import ISSUER, worker

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.children.worker_pod import Patches, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

SOCKET = "/run/rljob-scoring/socket"


@pytest.fixture
def cluster(defaults: ClusterDefaults) -> ClusterDefaults:
    return dataclasses.replace(defaults, issuer=ISSUER, per_job=True, containers=True)


@pytest.fixture
def job(make_job: MakeJob) -> RLJob:
    """A job with all that may be secret."""
    return make_job(
        model__uri="pvc://models/tiny", model__credentialsSecret="hub", weights__uri="pvc://runs/weights"
    )


def pod(job: RLJob, cluster: ClusterDefaults, user: Manifest | None = None) -> Manifest:
    patches = Patches("spec.reward.template", user)
    spec: Manifest = pod_template(resolve_job(job, cluster), Role.REWARD, "config", patches)["spec"]
    return spec


def scorer(spec: Manifest) -> Manifest:
    (found,) = [c for c in spec["containers"] if c["name"] == "scorer"]
    return dict(found)


def test_all_that_a_function_can_see_and_reach(job: RLJob, cluster: ClusterDefaults) -> None:
    spec = pod(job, cluster)
    container = scorer(spec)
    assert container.keys() == {
        "name", "image", "command", "volumeMounts", "livenessProbe", "terminationMessagePolicy", "securityContext",
        "resources",
    }, "no env, no envFrom, and nothing that a reader of this list has not seen"  # fmt: skip
    assert container["command"] == ["python", "-P", "-s", "-m", "rljob_runtime.rewards.server", SOCKET]
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "256Mi"},
        "limits": {"memory": "8Gi"},
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    seen = {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}
    assert seen == {
        "/run/rljob-scoring": {"name": "scoring", "emptyDir": {"sizeLimit": "1Mi"}},
        "/dev/shm": {"name": "scoring-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        "/tmp": {"name": "scoring-temporary", "emptyDir": {"sizeLimit": "8Gi"}},
    }
    (shared,) = [
        m
        for m in worker(spec, Role.REWARD)["volumeMounts"]
        if m["name"] in {v["name"] for v in seen.values()}
    ]
    assert shared == {"name": "scoring", "mountPath": "/run/rljob-scoring", "readOnly": True}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert not {"hostPID", "hostIPC", "hostNetwork", "shareProcessNamespace"} & spec.keys()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_the_worker_knows_where_functions_run(
    job: RLJob, cluster: ClusterDefaults, defaults: ClusterDefaults
) -> None:
    variables = {e["name"]: e.get("value") for e in worker(pod(job, cluster), Role.REWARD)["env"]}
    assert variables["RLJOB_SCORING_SOCKET"] == SOCKET
    local = pod(job, defaults)
    assert [c["name"] for c in local["containers"]] == ["reward"]
    assert "SCORING" not in json.dumps(local), (
        "where there are no containers, the worker starts a server itself"
    )


def test_what_a_job_names_reaches_functions_and_nothing_else_does(
    job: RLJob, cluster: ClusterDefaults
) -> None:
    judge = {"name": "JUDGE_KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "key"}}}
    limits = {"limits": {"memory": "2Gi"}}
    user = {
        "spec": {
            "runtimeClassName": "gvisor",
            "containers": [
                {"name": "reward", "env": [{"name": "HTTP_PROXY", "value": "http://proxy"}]},
                {"name": "scorer", "env": [judge], "resources": limits},
            ],
        }
    }
    spec = pod(job, cluster, user)
    assert spec["runtimeClassName"] == "gvisor"
    assert (scorer(spec)["env"], scorer(spec)["resources"]) == ([judge], limits)
    assert "resources" not in worker(spec, Role.REWARD)


def test_the_site_s_limits_hold_for_functions_and_its_variables_do_not(
    job: RLJob, cluster: ClusterDefaults
) -> None:
    limits = {"limits": {"memory": "1Gi"}}
    template = {
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "resources": limits,
                    "imagePullPolicy": "Never",
                    "env": [{"name": "SITE_TOKEN", "value": "secret"}],
                    "envFrom": [{"secretRef": {"name": "site"}}],
                    "volumeMounts": [{"name": "site", "mountPath": "/site"}],
                }
            ],
            "volumes": [{"name": "site", "secret": {"secretName": "site"}}],
        }
    }
    spec = pod(job, dataclasses.replace(cluster, template=template))
    assert [c["name"] for c in spec["containers"]] == ["reward", "scorer"]
    container = scorer(spec)
    assert (container["resources"], container["imagePullPolicy"]) == (limits, "Never")
    assert not {"env", "envFrom"} & container.keys()
    assert "site" not in json.dumps(container)


@pytest.mark.parametrize("field", ["shareProcessNamespace", "hostPID"])
def test_a_pod_whose_containers_see_each_other_s_processes_is_refused(
    job: RLJob, cluster: ClusterDefaults, field: str
) -> None:
    with pytest.raises(SpecError, match=rf"^spec\.reward\.template\.spec\.{field}: .*remove it$"):
        pod(job, cluster, {"spec": {field: True}})


def test_the_site_may_say_more_of_this_container_in_the_pods_that_have_it(
    job: RLJob, cluster: ClusterDefaults
) -> None:
    proxy = [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]
    with_proxy = dataclasses.replace(
        cluster, template={"spec": {"containers": [{"name": "scorer", "env": proxy}]}}
    )
    assert scorer(pod(job, with_proxy))["env"] == proxy
    patches = Patches("spec.coordinator.template")
    other = pod_template(resolve_job(job, with_proxy), Role.COORDINATOR, "config", patches)["spec"]
    assert [c["name"] for c in other["containers"]] == ["coordinator"]
