"""Which objects with a job's label are the job's own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from dictionary_server import DictionaryServer, replica_set
from small_job import make_small_job

from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.observe import summarize
from rljob_operator.decisions.ownership import sort_out
from rljob_operator.reconcile.pod_controllers import PodControllers

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


def set_of(*owners: Manifest) -> Manifest:
    """A ReplicaSet that is named as one of the job's Deployment of reward workers would be; it has no label."""
    metadata = {"name": "chain-sum-reward-5d4f", "uid": "r", "ownerReferences": list(owners)}
    return {"apiVersion": REPLICAS, "kind": "ReplicaSet", "metadata": metadata}


def unlabelled(kind: str, name: str, uid: str, *owners: Manifest) -> Manifest:
    return {"kind": kind, "metadata": {"name": name, "uid": uid, "ownerReferences": list(owners)}}


REWARD, TRAINER = "chain-sum-reward", "chain-sum-trainer-2"
OWN = [
    made("Deployment", REWARD, BY_JOB, role="reward"),
    made("Job", TRAINER, BY_JOB, role="trainer", attempt="2"),
]
OTHERS = [made("Deployment", REWARD, role="reward"), made("Job", TRAINER, role="trainer", attempt="2")]
OF_OWN = owner("Deployment", REWARD, f"uid-of-{REWARD}", version=REPLICAS)
OF_FORMER = owner("Deployment", REWARD, "an earlier one's", version=REPLICAS)
NEVER, ENDING, ALWAYS = "never", "while it is being deleted", "always"


@pytest.mark.parametrize(
    ("counts", "labelled", "found"),
    [
        (ALWAYS, OWN, [set_of(OF_OWN)]),
        (NEVER, OWN, [set_of()]),
        (NEVER, OWN, [set_of({**OF_OWN, "controller": False})]),
        (NEVER, OWN, [set_of(owner("Deployment", "web", "w", version=REPLICAS))]),
        (NEVER, OWN, [set_of(owner("Rollout", REWARD, "w", version="argoproj.io/v1alpha1"))]),
        (ENDING, OWN, [set_of(OF_FORMER)]),
        (ENDING, OWN, []),
        (NEVER, OTHERS, [set_of(OF_OWN)]),
        (NEVER, OTHERS, [set_of()]),
        (NEVER, OTHERS, []),
        (ALWAYS, [], [set_of(OF_FORMER)]),
        (ALWAYS, [], []),
        (NEVER, [], [set_of()]),
        (NEVER, [], [set_of(OF_FORMER), unlabelled("Deployment", REWARD, "an earlier one's")]),
        (ALWAYS, [], [set_of(OF_FORMER), unlabelled("Deployment", REWARD, "an earlier one's", BY_JOB)]),
    ],
)
@pytest.mark.parametrize("ending", [False, True])
def test_a_pod_counts_by_the_deployment_of_its_replica_set(
    counts: str, labelled: list[Manifest], found: list[Manifest], ending: bool
) -> None:
    pod = made("Pod", "p", owner("ReplicaSet", f"{REWARD}-5d4f", "r", version=REPLICAS), role="reward")
    assert pods_of(pod, labelled, found, ending=ending) is (counts == ALWAYS or (counts == ENDING and ending))


@pytest.mark.parametrize(
    ("counts", "uid", "labelled", "found"),
    [
        (ALWAYS, f"uid-of-{TRAINER}", OWN, []),
        (ENDING, "an earlier Job's", OWN, []),
        (NEVER, f"uid-of-{TRAINER}", OTHERS, []),
        (ALWAYS, "j", [], []),
        (NEVER, "j", [], [unlabelled("Job", TRAINER, "j")]),
        (ALWAYS, "j", [], [unlabelled("Job", TRAINER, "j", BY_JOB)]),
    ],
)
@pytest.mark.parametrize("ending", [False, True])
def test_a_trainer_s_pod_counts_by_its_job(
    counts: str, uid: str, labelled: list[Manifest], found: list[Manifest], ending: bool
) -> None:
    pod = made("Pod", "p", owner("Job", TRAINER, uid), role="trainer", attempt="2")
    assert pods_of(pod, labelled, found, ending=ending) is (counts == ALWAYS or (counts == ENDING and ending))


def pods_of(pod: Manifest, labelled: list[Manifest], found: list[Manifest], *, ending: bool) -> bool:
    """Whether a pod counts, where those labelled objects exist, and the others were found."""
    if ending:
        pod["metadata"]["deletionTimestamp"] = NOW.isoformat()
    return bool(sort_out(JOB, [pod, *labelled], found, now=NOW).pods)


def test_what_the_operator_made_and_cannot_read_has_no_uid() -> None:
    secret = made("Secret", "chain-sum-nats-reward-5d4f", BY_JOB)
    del secret["metadata"]["uid"]
    assert list(sort_out(JOB, [secret, *OWN], now=NOW).children) == list(map(Ref.of, [secret, *OWN]))


class UnlabelledSets(DictionaryServer):
    """ReplicaSets have no label here: they have to be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        return [manifest for manifest in await super().children(job) if manifest["kind"] != "ReplicaSet"]

    async def find(self, ref: Ref) -> Manifest | None:
        self.asked.append(str(ref))
        sets = {Ref.of(found): found for found in map(replica_set, self.of("Deployment"))}
        if ref not in sets:
            return await super().find(ref)
        managed = {"managedFields": [{"manager": "kube-controller-manager"}]}
        return {**sets[ref], "metadata": {**sets[ref]["metadata"], **managed}}


async def test_a_replica_set_is_asked_for_once() -> None:
    server, role = UnlabelledSets(), {"role": "reward"}
    deployment = made("Deployment", REWARD, BY_JOB, **role)
    template = {"metadata": {"labels": deployment["metadata"]["labels"]}}
    server.objects[Ref.of(deployment)] = {**deployment, "spec": {"replicas": 2, "template": template}}
    for number in range(2):
        server.pod(server.of("Deployment")[0], number)
    stranger = made("Pod", "p", owner("ReplicaSet", f"{REWARD}-other", "s", version=REPLICAS), **role)
    server.objects[Ref.of(stranger)] = stranger
    controllers = PodControllers(server)
    for _ in range(2):
        manifests, found = await controllers.read(JOB)
        assert len(sort_out(JOB, manifests, found, now=NOW).pods) == 2
        assert not any("managedFields" in manifest["metadata"] for manifest in found)  # they are large
    assert server.asked == [f"ReplicaSet {REWARD}-5d4f", f"ReplicaSet {REWARD}-other"]
