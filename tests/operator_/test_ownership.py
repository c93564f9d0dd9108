"""Which objects with a job's label are the job's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from small_job import make_small_job

from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.observe import summarize
from rljob_operator.decisions.ownership import sort_out

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = make_small_job()
POOL_NAME = "chain-sum-rollout-cpu"


def owner(kind: str, name: str, uid: str, *, version: str = "rljob.dev/v1alpha1") -> Manifest:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


BY_JOB = owner("RLJob", "chain-sum", "u-1")
BY_POOL = owner("RolloutPool", POOL_NAME, "p-1")


def made(kind: str, name: str, *owners: Manifest, **labels: str) -> Manifest:
    marks = {"rljob.dev/job": "chain-sum"} | {f"rljob.dev/{label}": value for label, value in labels.items()}
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-of-{name}", "labels": marks}
    if owners:
        metadata["ownerReferences"] = list(owners)
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def pool(uid: str, *owners: Manifest) -> Manifest:
    found = made("RolloutPool", POOL_NAME, *owners, role="rollout", pool="cpu")
    found["metadata"]["uid"] = uid
    return {**found, "spec": {"pool": "cpu"}}


def of_pool(*owners: Manifest) -> Manifest:
    return made("ConfigMap", f"{POOL_NAME}-config", *owners, role="rollout", pool="cpu")


def whose(*manifests: Manifest) -> str:
    """Of the first of these objects."""
    observed, ref = summarize(JOB, _NO_STATUS, manifests, now=NOW), Ref.of(manifests[0])
    if ref in observed.strangers:
        assert ref not in observed.children
        return "a stranger's"
    return "the job's" if "deletionTimestamp" not in observed.children[ref]["metadata"] else "deleted"


_NO_STATUS: Any = None


@pytest.mark.parametrize(
    ("expected", "manifests"),
    [
        ("the job's", [made("ConfigMap", "chain-sum-config", BY_JOB)]),
        ("a stranger's", [made("ConfigMap", "chain-sum-config")]),
        ("a stranger's", [made("ConfigMap", "chain-sum-config", {**BY_JOB, "controller": False})]),
        ("a stranger's", [made("ConfigMap", "chain-sum-config", {**BY_JOB, "uid": "an earlier one's"})]),
        ("the job's", [of_pool(BY_POOL), pool("p-1", BY_JOB)]),
        ("a stranger's", [of_pool(BY_POOL), pool("p-1")]),
        ("a stranger's", [of_pool(BY_POOL), pool("p-1", {**BY_JOB, "uid": "an earlier one's"})]),
        ("deleted", [of_pool(BY_POOL)]),
        ("deleted", [of_pool(BY_POOL), pool("p-2", BY_JOB)]),
        ("a stranger's", [of_pool(owner("RolloutPool", "another", "p-1"))]),
        ("a stranger's", [of_pool(owner("RolloutPool", POOL_NAME, "p-1", version="example.org/v1"))]),
        ("a stranger's", [made("Deployment", "web", role="chef")]),
    ],
)
def test_an_object_is_the_job_s_by_its_controller(expected: str, manifests: list[Manifest]) -> None:
    assert whose(*manifests) == expected


REPLICAS = "apps/v1"


@pytest.mark.parametrize(
    ("counts", "labels", "controller"),
    [
        (True, {"role": "reward"}, owner("ReplicaSet", "chain-sum-reward-5d4f", "r", version=REPLICAS)),
        (
            True,
            {"role": "rollout", "pool": "cpu"},
            owner("ReplicaSet", f"{POOL_NAME}-5d4f", "r", version=REPLICAS),
        ),
        (True, {"role": "trainer", "attempt": "2"}, owner("Job", "chain-sum-trainer-2", "j")),
        (False, {"role": "reward"}, None),
        (False, {"role": "reward"}, owner("ReplicaSet", "web-5d4f", "r", version=REPLICAS)),
        (False, {"role": "reward"}, owner("StatefulSet", "chain-sum-reward-5d4f", "r", version=REPLICAS)),
        (False, {"role": "chef"}, owner("ReplicaSet", "chain-sum-chef-5d4f", "r", version=REPLICAS)),
        (False, {"role": "trainer", "attempt": "1"}, owner("Job", "chain-sum-trainer-2", "j")),
        (False, {"role": "trainer", "attempt": "²"}, owner("Job", "chain-sum-trainer-2", "j")),
        (False, {"role": "trainer"}, owner("Job", "chain-sum-trainer-2", "j")),
        (False, {}, owner("ReplicaSet", "chain-sum-reward-5d4f", "r", version=REPLICAS)),
    ],
)
def test_a_pod_is_the_job_s_by_its_controller(
    counts: bool, labels: dict[str, str], controller: Manifest | None
) -> None:
    pod = made("Pod", "p", *([] if controller is None else [controller]), **labels)
    assert bool(summarize(JOB, _NO_STATUS, [pod], now=NOW).pods) is counts


@pytest.mark.parametrize(
    ("counts", "role", "uid", "of_job"),
    [
        (True, "trainer", "uid-of-chain-sum-trainer-2", True),
        (False, "trainer", "another Job's", True),
        (False, "trainer", "uid-of-chain-sum-trainer-2", False),
        (True, "reward", "r", True),
        (False, "reward", "r", False),
    ],
)
@pytest.mark.parametrize("ending", [False, True])
def test_a_pod_counts_if_its_controller_is_of_an_object_of_the_job(
    counts: bool, role: str, uid: str, of_job: bool, ending: bool
) -> None:
    """One that is being deleted may be of an earlier Job of the name: it counts until it is gone."""
    kind, name, labels = {
        "trainer": ("Job", "chain-sum-trainer-2", {"role": "trainer", "attempt": "2"}),
        "reward": ("Deployment", "chain-sum-reward", {"role": "reward"}),
    }[role]
    workload = made(kind, name, *([BY_JOB] if of_job else []), **labels)
    by = owner("ReplicaSet", f"{name}-5d4f", uid) if kind == "Deployment" else owner("Job", name, uid)
    pod = made("Pod", "p", by, **labels)
    if ending:
        pod["metadata"]["deletionTimestamp"] = NOW.isoformat()
    found = sort_out(JOB, [pod, workload], now=NOW).pods
    assert bool(found) is (counts or (ending and of_job))
