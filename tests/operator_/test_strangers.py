"""Objects that are not a job's own have the names of its children: the operator writes and deletes none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, children_of, manifest
from tests.waiting import until

pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("operator")]

JOB = "rljob.dev/job"


def config_map(name: str, **labels: str) -> Object:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"to": "a friend"}}


def service_account(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


def deployment(name: str, **labels: str) -> Object:
    own = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": own},
                "spec": {"containers": [{"name": "own", "image": "own"}]},
            },
        },
    }


def replica_set(name: str, **labels: str) -> Object:
    """Somebody's own, without a label; its pods have labels."""
    own = {"app": name}
    template = {
        "metadata": {"labels": {**own, **labels}},
        "spec": {"containers": [{"name": "own", "image": "own"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": own}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}


def owned(manifest: Object, by: Object) -> Object:
    """The same, with another job as its controller."""
    owner = {"apiVersion": by["apiVersion"], "kind": "RLJob", "name": by["metadata"]["name"]}
    reference = {**owner, "uid": by["metadata"]["uid"], "controller": True}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def address(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def content(manifest: Object | None) -> Object | None:
    """What a write would change, and a deletion would end; controllers write the status of a Deployment."""
    if manifest is None:
        return None
    kept = ("uid", "labels", "annotations", "ownerReferences", "deletionTimestamp")
    metadata = {field: manifest["metadata"].get(field) for field in kept}
    metadata["annotations"] = {
        k: v
        for k, v in (metadata["annotations"] or {}).items()
        if not k.startswith("deployment.kubernetes.io")
    }
    return {**{k: v for k, v in manifest.items() if k in {"data", "spec"}}, "metadata": metadata}


def stalled(watched: Namespace, name: str) -> Object | None:
    found = watched.condition(name, "Stalled")
    return found if found is not None and found["status"] == "True" else None


def attempt(watched: Namespace, name: str) -> int:
    return int((watched.get("rljob", name) or {}).get("status", {}).get("trainerAttempt", 0))


@pytest.fixture
def operator(
    crds: SharedControlPlane, namespace: str, nats_server: EmbeddedServer, tmp_path: Path
) -> Iterator[Operator]:
    with Operator(crds.kubeconfig, nats_server.url, namespace, tmp_path / "operator.log") as running:
        yield running


def test_names_that_others_have_are_reported_and_left_alone(operator: Operator, watched: Namespace) -> None:
    strangers = {
        "plain": config_map("plain-config"),
        "account": service_account("account-worker"),
        "workload": deployment("workload-coordinator"),
        "labelled": config_map("labelled-config", **{JOB: "labelled"}),
        "audited": config_map("audited-audit"),
    }
    for stranger in strangers.values():
        watched.apply(stranger)
    before = {name: content(watched.get(*address(stranger))) for name, stranger in strangers.items()}
    for name in strangers:
        watched.apply(manifest(name))
    for name, stranger in strangers.items():
        found: Object = until(lambda name=name: stalled(watched, name))
        kind, taken = address(stranger)
        assert found["reason"] == "NameTaken"
        assert found["message"].startswith(
            f"{kind} {watched.name}/{taken} exists already and belongs to no controller: delete it"
        )
        assert watched.condition(name, "Ready")["reason"] == "NameTaken"
    # Where the ServiceAccount or the configuration is not the job's, there are no pods either.
    makers = {name for name in watched.names("deployment,job") if not name.startswith("workload-")}
    assert not {name for name in makers if name.split("-")[0] in {"plain", "account", "labelled"}}
    watched("delete", "rljob", "plain", "labelled", "--timeout=300s")
    assert {name: content(watched.get(*address(s))) for name, s in strangers.items()} == before
    # A job whose name is free again goes on.
    watched("delete", "serviceaccount", "account-worker")
    watched.apply(manifest("account", steps=4))
    until(lambda: children_of("account", attempt=attempt(watched, "account")) <= watched.children())
    assert not watched.is_true("account", "Stalled")


def test_the_label_of_a_job_makes_nothing_the_job_s(operator: Operator, watched: Namespace) -> None:
    labels = {JOB: "sums"}
    watched.apply(config_map("notes", **labels))
    watched.apply(deployment("web", **labels, **{"rljob.dev/role": "chef"}))
    watched.apply(manifest("other"))
    other = watched.existing("rljob", "other")
    watched.apply(owned(config_map("letter", **labels), other))
    names = [("configmap", "notes"), ("deployment", "web"), ("configmap", "letter")]
    before = [content(watched.get(*name)) for name in names]
    watched.apply(manifest("sums"))
    until(lambda: children_of("sums") <= watched.children())
    watched.patch("rljob", "sums", {"spec": {"suspend": True}})
    until(lambda: watched.is_true("sums", "Suspended"))
    until(lambda: not children_of("sums") & watched.children())
    watched("delete", "rljob", "sums", "--timeout=300s")
    assert [content(watched.get(*name)) for name in names] == before


@pytest.mark.parametrize(
    "labels", [{"role": "reward"}, {"role": "rollout", "pool": "cpu"}], ids=["reward", "pool"]
)
def test_a_pod_of_somebody_s_replica_set_is_not_the_job_s(
    operator: Operator, watched: Namespace, labels: dict[str, str]
) -> None:
    """Its ReplicaSet is named as the one of the job's own Deployment would be."""
    marks = {JOB: "sums"} | {f"rljob.dev/{label}": value for label, value in labels.items()}
    name = "-".join(["sums", *labels.values(), "5d4f"])
    watched.apply(replica_set(name, **marks))
    (pod,) = until(lambda: [p for p in watched.names("pod") if p.startswith(name)])
    before = content(watched.get("pod", pod))
    watched.apply(manifest("sums"))
    until(lambda: children_of("sums") <= watched.children())
    watched.patch("rljob", "sums", {"spec": {"suspend": True}})
    until(lambda: watched.is_true("sums", "Suspended"))
    until(lambda: not watched.is_true("sums", "Reconciling"))
    watched("delete", "rljob", "sums", "--timeout=300s")
    assert content(watched.get("pod", pod)) == before


def test_a_name_that_another_job_s_child_has_says_whose_it_is(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest("first"))
    first = watched.existing("rljob", "first")
    watched.apply(owned(config_map("second-config"), first))
    watched.apply(manifest("second"))
    found: Object = until(lambda: stalled(watched, "second"))
    assert f"belongs to RLJob first (uid {first['metadata']['uid']})" in found["message"]


def test_a_child_that_lost_its_label_is_still_the_job_s(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest("sums"))
    until(lambda: watched.children() == children_of("sums"))
    uid = watched.existing("configmap", "sums-config")["metadata"]["uid"]
    watched("label", "configmap", "sums-config", f"{JOB}-")
    until(lambda: JOB in watched.existing("configmap", "sums-config")["metadata"]["labels"])
    watched("label", "configmap", "sums-config", "--overwrite", f"{JOB}=other")
    until(lambda: watched.existing("configmap", "sums-config")["metadata"]["labels"][JOB] == "sums")
    assert watched.existing("configmap", "sums-config")["metadata"]["uid"] == uid
    assert not watched.is_true("sums", "Stalled")


def test_a_name_that_is_taken_while_a_request_is_on_its_way_is_left_alone(
    crds: SharedControlPlane, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> None:
    """The request was decided on when the name was free, or the job's own."""

    def on_its_way(proxy: ApiProxy, method: str, name: str) -> None:
        proxy.held.clear()
        proxy.hold(lambda m, path: m == method and path.endswith(f"/configmaps/{name}"))

    def replaced(name: str) -> Object | None:
        watched("delete", "configmap", name, "--ignore-not-found")
        watched.apply(config_map(name))
        return content(watched.get("configmap", name))

    log = tmp_path / "operator.log"
    with (
        ApiProxy(crds.kubeconfig, tmp_path) as proxy,
        Operator(proxy.kubeconfig, nats_server.url, watched.name, log),
    ):
        on_its_way(proxy, "PATCH", "created-config")
        watched.apply(manifest("created"))
        until(proxy.held.is_set)
        created = replaced("created-config")
        proxy.go()
        until(lambda: stalled(watched, "created"))
        for name, method in (("changed", "PATCH"), ("deleted", "DELETE")):
            watched.apply(manifest(name))
            until(lambda name=name: children_of(name) <= watched.children())
            on_its_way(proxy, method, f"{name}-config")
            if method == "PATCH":
                watched.apply(manifest(name, steps=4))
            else:
                watched("delete", "rljob", name, "--wait=false")
            until(proxy.held.is_set)
            stranger = replaced(f"{name}-config")
            proxy.go()
            if method == "PATCH":
                until(lambda: stalled(watched, "changed"))
            else:
                until(lambda: watched.get("rljob", "deleted") is None)
            assert content(watched.get("configmap", f"{name}-config")) == stranger
        assert content(watched.get("configmap", "created-config")) == created
        until(lambda: (stalled(watched, "changed") or {}).get("reason") == "NameTaken")
