"""Every worker's pod has the port of its metrics, and only scrapers may connect to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from small_job import MakeJob

from rljob_core import worker_protocol
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.isolation import network_policy
from rljob_operator.children.metrics_port import PORT_NAME, SCRAPERS, port_of
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.port import Manifest

PORT = 9464


@pytest.fixture
def serving(defaults: ClusterDefaults) -> ClusterDefaults:
    return replace(defaults, metrics_port=PORT, containers=True)


def templates(make_job: MakeJob, defaults: ClusterDefaults, **changes: Any) -> dict[str, Manifest]:
    pools = {"cpu": {"metadata": {"uid": "u-2"}, "spec": {}}}
    found = desired(resolve_job(make_job(**changes), defaults), Targets(attempt=1, failures=0, pools=pools))
    return {
        child["metadata"]["labels"]["rljob.dev/role"]: child["spec"]["template"]
        for child in found
        if child["kind"] in {"Deployment", "Job"}
    }


def test_every_role_serves_on_the_port_of_that_name(make_job: MakeJob, serving: ClusterDefaults) -> None:
    found = templates(make_job, serving)
    assert found.keys() == {"coordinator", "reward", "rollout", "trainer"}
    for role, template in found.items():
        assert port_of(template) == PORT
        for container in template["spec"]["containers"]:
            variables = {v["name"]: v.get("value") for v in container.get("env", ())}
            ports = [port["containerPort"] for port in container.get("ports", ())]
            ours = container["name"] == role
            assert variables.get(worker_protocol.METRICS_ADDRESS) == (f":{PORT}" if ours else None)
            assert (PORT in ports) == ours


def test_a_gang_of_several_nodes_keeps_both_ports(make_job: MakeJob, serving: ClusterDefaults) -> None:
    (container,) = templates(make_job, serving, trainer__numNodes=2)["trainer"]["spec"]["containers"]
    assert {port["name"] for port in container["ports"]} == {"rendezvous", "metrics"}


def test_a_template_turns_it_off(make_job: MakeJob, serving: ClusterDefaults) -> None:
    variable = {"name": worker_protocol.METRICS_ADDRESS, "value": ""}
    patch = {"spec": {"containers": [{"name": "coordinator", "env": [variable]}]}}
    template = templates(make_job, serving, coordinator__template=patch)["coordinator"]
    (container,) = template["spec"]["containers"]
    assert variable in container["env"]


@pytest.mark.parametrize(
    ("pod", "left"),
    [
        (
            {"containers": [{"name": "coordinator", "ports": [{"name": "metrics", "containerPort": 8000}]}]},
            [8000],
        ),
        ({"hostNetwork": True}, []),
    ],
)
def test_a_template_that_leaves_no_room_for_the_port_does_without(
    make_job: MakeJob, serving: ClusterDefaults, pod: Manifest, left: list[int]
) -> None:
    spec = templates(make_job, serving, coordinator__template={"spec": pod})["coordinator"]["spec"]
    (container,) = spec["containers"]
    assert [port["containerPort"] for port in container["ports"]] == left
    assert worker_protocol.METRICS_ADDRESS not in {variable["name"] for variable in container["env"]}


def test_a_template_that_names_the_same_port_changes_nothing(
    make_job: MakeJob, serving: ClusterDefaults
) -> None:
    ports = [{"name": "metrics", "containerPort": PORT}]
    patch = {"spec": {"containers": [{"name": "coordinator", "ports": ports}]}}
    template = templates(make_job, serving, coordinator__template=patch)["coordinator"]
    assert template == templates(make_job, serving)["coordinator"]


def test_only_scrapers_connect_to_it(make_job: MakeJob, serving: ClusterDefaults) -> None:
    ranks, scrapers = network_policy(resolve_job(make_job(), serving))["spec"]["ingress"]
    assert list(ranks) == ["from"]
    named = [{"key": "app.kubernetes.io/name", "operator": "In", "values": list(SCRAPERS)}]
    peer = {"namespaceSelector": {}, "podSelector": {"matchExpressions": named}}
    assert scrapers == {"from": [peer], "ports": [{"protocol": "TCP", "port": PORT}]}


def test_only_scrapers_of_the_namespaces_that_the_administrator_names(
    make_job: MakeJob, serving: ClusterDefaults
) -> None:
    settings = replace(serving, scraper_namespaces=("monitoring", "ops"))
    _, rule = network_policy(resolve_job(make_job(), settings))["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"] == {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["monitoring", "ops"]}
        ]
    }
    assert "podSelector" in peer


def test_without_a_port_nothing_is_served_and_nobody_connects(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    for template in templates(make_job, defaults).values():
        assert port_of(template) == 0
        assert worker_protocol.METRICS_ADDRESS not in str(template)
    assert len(network_policy(resolve_job(make_job(), defaults))["spec"]["ingress"]) == 1


def test_the_pod_monitors_name_the_ports_and_labels_of_pods(
    make_job: MakeJob, serving: ClusterDefaults
) -> None:
    monitors = Path(__file__).parents[2] / "manifests/components/monitoring/pod-monitors.yaml"
    workers, operator = YAML(typ="safe").load_all(monitors)
    (endpoint,) = workers["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == PORT_NAME
    labels = {
        "__meta_kubernetes_pod_label_" + label.translate(str.maketrans("./-", "___"))
        for template in templates(make_job, serving).values()
        for label in template["metadata"]["labels"]
    }
    index = "__meta_kubernetes_pod_label_batch_kubernetes_io_job_completion_index"  # Kubernetes' own
    sources = {label for rule in endpoint["relabelings"] for label in rule["sourceLabels"]}
    assert sources - {index} <= labels
    manifests = YAML(typ="safe").load_all(monitors.parents[2] / "base/operator.yaml")
    (deployment,) = [found for found in manifests if found["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]
    assert operator["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    (probed,) = operator["spec"]["podMetricsEndpoints"]
    assert probed["port"] in {port["name"] for port in container["ports"]}
