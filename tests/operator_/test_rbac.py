"""The operator under its own service account: it is refused nothing, and uses all that its Role grants.

What it does is counted where it cannot be missed, in the API server's audit log. The API server also enforces who may
block an owner's deletion, as some distributions do.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gang_crds
import pytest
from e2e.harness.control_plane import ControlPlane
from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from e2e.harness.nats_server import EmbeddedServer
from installation import MANIFESTS, NAMESPACED, Object, installed, kubeconfig_of, moved, of_kind, rendered
from operators import Namespace, Operator, manifest
from tests.waiting import until

from rljob_cli.kubectl.cluster import ClusterChoice, UserCluster
from rljob_cli.kubectl.describe import describe
from rljob_cli.kubectl.refusals import ClusterRefused
from rljob_cli.kubectl.viewer import JobViewer
from rljob_cli.run_folder.folder import Identity
from rljob_cli.run_folder.streams import store_of
from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Channel
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.kinds import KINDS
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Ref
from rljob_operator.nats.accounts import Seeds, issuer, server_config

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("rbac")]

Right = tuple[str, str, str]
"""API group, resource (with its subresource), verb."""

NOT_YET: frozenset[Right] = frozenset()
"""Granted ahead of the code that uses it, which a scene below will make it do; a release has none."""


@dataclass(frozen=True)
class Installation:
    control_plane: ControlPlane

    def used(self, user: str) -> Counter[Right]:
        """What a user did, or tried to do."""
        return Counter(right for record in self.records(user) for right in rights(record))

    def refused(self, user: str) -> list[str]:
        """What a user was refused."""
        return sorted(
            {
                f"{record['verb']} {record['requestURI'].partition('?')[0]}"
                for record in self.records(user)
                if record.get("responseStatus", {}).get("code") in (401, 403)
            }
        )

    def records(self, user: str) -> list[Object]:
        assert self.control_plane.audit_log is not None
        lines = self.control_plane.audit_log.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if user in line and line.endswith("}\n")]
        return [record for record in found if record["user"]["username"] == user]


def rights(record: Object) -> Iterator[Right]:
    """The rights that a request needed."""
    at = record.get("objectRef")
    if at is None or (record["stage"] == "ResponseStarted" and record["verb"] != "watch"):
        return
    resource = "/".join(filter(None, (at["resource"], at.get("subresource"))))
    yield at.get("apiGroup", ""), resource, record["verb"]
    # The API server asks for both where an apply makes a new object.
    if record["verb"] == "patch" and record.get("responseStatus", {}).get("code") == 201:
        yield at.get("apiGroup", ""), resource, "create"


def granted(rules: list[Object]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    enforcing = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
    flags = {"kube-apiserver": [enforcing, *gang_crds.WORKLOADS["kube-apiserver"]]}
    with installed(tmp_path_factory.mktemp("rbac"), audit=True, flags=flags) as control_plane:
        for policies in ("operator", "namespaces/enforce"):
            folder = MANIFESTS / "policies" / policies
            control_plane.kubectl("apply", "--kustomize", str(folder), "--validate=strict")
        for crd in (gang_crds.COSCHEDULING, gang_crds.VOLCANO):
            gang_crds.install(control_plane.kubectl, crd)
        yield Installation(control_plane)


def opened(kubectl: Kubectl, name: str) -> Namespace:
    """A new namespace that is open to RLJobs."""
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, OPEN)
    watched = Namespace(kubectl.within(name))
    until(lambda: not watched.refuses(job("tried")))
    return watched


OPEN = "rljob.dev/enabled=true"
CLOSED = "rljob.dev/enabled-"


def job(name: str, **spec: Any) -> Object:
    """With a trainer of two nodes, which has a Service."""
    return manifest(name, trainer={"numNodes": 2, **CHECKPOINT}, **spec)


# ---------------------------------------------------------------------------------------------- scenes


def trained(watched: Namespace) -> None:
    """A job gets its children; what others break is repaired; a new spec is applied."""
    watched.apply(job("sums"))
    watched.existing("job", "sums-trainer-1")
    reward = watched.existing("deployment", "sums-reward")["metadata"]["uid"]
    watched("delete", "deployment", "sums-reward", "--wait=false")
    until(lambda: (watched.get("deployment", "sums-reward") or reward_gone)["metadata"]["uid"] != reward)
    until(lambda: len([name for name in watched.names("pod") if name.startswith("sums-rollout-")]) == 2)
    watched("scale", "rolloutpool", "sums-rollout-cpu", "--replicas=1")
    until(lambda: watched.existing("deployment", "sums-rollout-cpu")["spec"]["replicas"] == 1)
    watched.apply(job("sums", steps=4))
    until(lambda: watched.existing("rljob", "sums")["status"]["observedGeneration"] == 2)
    # The status is written first; then follows whoever reads the number of steps.
    until(lambda: watched.existing("deployment", "sums-coordinator")["metadata"]["generation"] > 1)


reward_gone: Object = {"metadata": {"uid": ""}}


def updated(watched: Namespace, name: str) -> bool:
    """Whether a Deployment has all pods of its newest template, and no others."""
    found = watched.existing("deployment", name)
    status, wanted = found.get("status", {}), found["spec"]["replicas"]
    seen = status.get("observedGeneration") == found["metadata"]["generation"]
    return seen and status.get("replicas") == status.get("updatedReplicas") == wanted


def on_a_lost_node(watched: Namespace) -> None:
    """A pod's node is gone: nobody is left to end it."""
    until(lambda: updated(watched, "sums-coordinator"))
    (name,) = [name for name in watched.names("pod") if name.startswith("sums-coordinator-")]
    target = {"apiVersion": "v1", "kind": "Node", "name": "lost"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    path = f"/api/v1/namespaces/{watched.name}/pods/{name}/binding"
    watched.kubectl("create", f"--raw={path}", "--filename=-", input_text=json.dumps(binding))
    conditions = [
        {"type": "Ready", "status": "False"},
        {"type": "ContainersReady", "status": "True"},
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
    ]
    now = (
        datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )  # an old one would be taken back
    patch = json.dumps({"status": {"conditions": [{**c, "lastTransitionTime": now} for c in conditions]}})
    watched("patch", "pod", name, "--subresource=status", "--patch", patch)
    watched("delete", "pod", name, "--wait=false")
    until(lambda: watched.get("pod", name) is None)


def suspended(watched: Namespace) -> None:
    """Children go one by one, and come back."""
    for suspend, children in (("true", False), ("false", True)):
        watched("patch", "rljob", "sums", "--type=merge", "--patch", f'{{"spec": {{"suspend": {suspend}}}}}')
        until(lambda children=children: bool(watched.names("deployment")) is children)
    watched.existing("job", "sums-trainer-2")


def deleted(watched: Namespace) -> None:
    """A job is deleted while it runs."""
    watched("delete", "rljob", "sums", "--timeout=300s")


def expired(watched: Namespace) -> None:
    """A job that is over is deleted by the operator."""
    watched.apply(job("late", activeDeadlineSeconds=1, ttlSecondsAfterFinished=1))
    until(lambda: watched.get("rljob", "late") is None)


def at_a_site(watched: Namespace) -> None:
    """A job waits for the Site that one of its pools names."""

    def waits_for_it() -> bool:
        return (watched.condition("far", "Stalled") or {}).get("reason") == "UnknownSite"

    pools = [{"name": "cpu", "site": "east", "replicas": 0}]
    watched.apply(manifest("far", rollout={"pools": pools}, weights={"transport": "Nats"}))
    until(waits_for_it)
    site: Object = {"apiVersion": "rljob.dev/v1alpha1", "kind": "Site", "metadata": {"name": "east"}}
    watched.apply({**site, "spec": {"namespaces": [watched.name]}})
    until(lambda: not waits_for_it())
    watched("delete", "rljob", "far", "--timeout=300s")


def in_gangs(watched: Namespace) -> None:
    """Trainers whose pods are placed together, by whatever places them; `trained` has the object of kube-scheduler."""
    for kind in (GangKind.POD_GROUP, GangKind.VOLCANO):
        watched.apply(manifest("many", trainer={"numNodes": 2, "gang": kind.value, **CHECKPOINT}))
        groups = f"{kind.plural}.{kind.api_version.partition('/')[0]}"
        watched.existing(groups, "many-trainer-1")
        watched("delete", "rljob", "many", "--timeout=300s")
        assert watched.names(groups) == []


CHECKPOINT = {"checkpoint": {"uri": "pvc://shared/checkpoints"}}

SCENES = (trained, on_a_lost_node, suspended, deleted, expired, at_a_site, in_gangs)


# ---------------------------------------------------------------------------------------------- tests


@pytest.fixture
def nats_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that asks for credentials; the operator's environment has what makes its own and those of jobs."""
    seeds = Seeds.complete({}, os.urandom)
    file = tmp_path / "issuer.json"
    file.write_text(issuer(seeds).text())
    monkeypatch.setenv("RLJOB_NATS_ISSUER", str(file))
    accounts = server_config(seeds, folder=str(tmp_path / "accounts"))
    server = EmbeddedServer(tmp_path / "nats", accounts=accounts)
    asyncio.run(server.start())
    yield server.url
    asyncio.run(server.kill())


def elected(system: Kubectl) -> dict[str, str]:
    """What a process of the operator is given to be elected, of two pods: the other one was before."""
    for name, labels in {"new": {}, "old": {"rljob.dev/leader": "true"}}.items():
        labels |= {"app.kubernetes.io/name": "rljob-operator"}
        closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec = {
            "containers": [{"name": "operator", "image": "any", "securityContext": closed}],
            "serviceAccountName": "rljob-operator",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        }
        system.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        )
    return {"RLJOB_LEASE": "rljob-operator", "POD_NAME": "new", "POD_NAMESPACE": "rljob-system"}


@pytest.mark.smoke
def test_the_operator_needs_what_its_role_grants_and_no_more(
    installation: Installation, nats_url: str, tmp_path: Path
) -> None:
    kubectl = installation.control_plane.kubectl
    watched = opened(kubectl, "team")
    account = kubeconfig_of(kubectl, "rljob-operator", "rljob-system", tmp_path / "operator.kubeconfig")
    user = "system:serviceaccount:rljob-system:rljob-operator"
    system = kubectl.within("rljob-system")
    with Operator(account, nats_url, "", tmp_path / "operator.log", **elected(system)):
        for scene in SCENES:
            scene(watched)
            assert installation.refused(user) == []
    assert system("get", "pods", "--selector=rljob.dev/leader=true", "--output=name").split() == ["pod/new"]
    assert system.json("get", "lease", "rljob-operator")["spec"]["leaseTransitions"] == 0
    roles = [kubectl.json("get", "clusterrole", f"rljob-operator{part}")["rules"] for part in ("", "-sites")]
    roles.append(system.json("get", "role", "rljob-operator-lease")["rules"])
    role = granted([rule for rules in roles for rule in rules])
    used = set(installation.used(user))
    assert sorted(used - role) == [], "used, but by another grant than its own"
    assert sorted(role - used - NOT_YET) == [], "granted, and not used"
    assert sorted(NOT_YET & used) == [], "used by now: take it out of NOT_YET"


def test_in_one_namespace_a_role_is_enough(installation: Installation, nats_url: str, tmp_path: Path) -> None:
    kubectl = installation.control_plane.kubectl
    watched = opened(kubectl, "alone")
    objects = rendered(kubectl, moved(NAMESPACED, "alone", tmp_path / "moved"))
    kubectl.apply(of_kind(objects, "ServiceAccount", "Role", "RoleBinding"))
    account = kubeconfig_of(kubectl, "rljob-operator", "alone", tmp_path / "operator.kubeconfig")
    user = "system:serviceaccount:alone:rljob-operator"
    # The API server learns of it in its time; asked by another, or it would be a refusal of this user's.
    until(lambda: watched.kubectl.succeeds("auth", "can-i", "create", "deployments", f"--as={user}"))
    with Operator(account, nats_url, "alone", tmp_path / "operator.log"):
        trained(watched)
        deleted(watched)
    assert installation.refused(user) == []
    assert installation.used(user)
    # The policies know it by its name, whatever its namespace.
    with pytest.raises(ClusterError, match=r"'rljob-operator'.*only objects whose controller is an RLJob"):
        watched("create", "configmap", "new", f"--as={user}")
    watched("auth", "can-i", "create", "leases.coordination.k8s.io", f"--as={user}")


def named(kind: str, name: str) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def inside(namespace: str, manifest: Object) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


STRANGER: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "plain"},
    "data": {"to": "a friend"},
}
OWNED_BY_WEB: Object = {
    **STRANGER,
    "metadata": {
        "name": "of-web",
        "labels": {"rljob.dev/job": "sums"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": True}
        ],
    },
}
CLAIMED: Object = {
    "metadata": {
        "ownerReferences": [
            {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "a", "uid": "u", "controller": True}
        ]
    }
}


LABEL: Object = {"metadata": {"labels": {"tried": "yes"}}}
NOTE: Object = {"metadata": {"annotations": {"tried": "yes"}}}


def about(kind: str, version: str, namespace: str) -> Object:
    at = {"apiVersion": version, "kind": kind, "name": "sums", "namespace": namespace}
    metadata = {"generateName": "sums.", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": at,
        "reason": "Tried",
    }


@pytest.mark.smoke
async def test_the_operator_s_token_is_good_for_nothing_but_objects_of_jobs(
    installation: Installation, tmp_path: Path
) -> None:
    """Tried by whoever has stolen it."""
    admin = installation.control_plane.kubectl
    victim = opened(admin, "victim").kubectl
    spec = {"containers": [{"name": "own", "image": "own"}]}
    victim.apply(
        [STRANGER, named("ServiceAccount", "default"), {**named("Pod", "own"), "spec": spec}, job("sums")]
    )
    labels = {"name": "of-a-job", "labels": {"rljob.dev/job": "sums"}}
    victim.apply({**named("Pod", "of-a-job"), "metadata": labels, "spec": spec})
    account = kubeconfig_of(admin, "rljob-operator", "rljob-system", tmp_path / "stolen.kubeconfig")
    thief = KubeApi(KubeLogin(account))
    tried = [
        thief.create(inside("victim", OWNED_BY_WEB)),
        thief.create(inside("victim", named("ConfigMap", "new"))),
        thief.create(inside("victim", named("ServiceAccount", "new"))),
        thief.create(inside("victim", named("Secret", "new"))),
        thief.apply(inside("victim", STRANGER)),
        thief.patch(Ref("ConfigMap", "victim", "plain"), {"data": {"to": "a foe"}}),
        thief.patch(Ref("ConfigMap", "victim", "plain"), CLAIMED),
        thief.delete(Ref("ConfigMap", "victim", "plain")),
        thief.patch(Ref("Pod", "victim", "own"), {"metadata": {"labels": {"rljob.dev/job": "sums"}}}),
        thief.delete(Ref("Pod", "victim", "own")),
        thief.patch(Ref("ServiceAccount", "victim", "default"), CLAIMED),
        thief.patch(Ref("Pod", "victim", "of-a-job"), LABEL),
        thief.patch(Ref("Pod", "victim", "of-a-job"), {"spec": {"activeDeadlineSeconds": 1}}),
        thief.patch(Ref("RLJob", "victim", "sums"), {"spec": {"image": "a-thief-s"}}),
        thief.patch(Ref("RLJob", "victim", "sums"), LABEL),
        thief.delete(Ref("RLJob", "victim", "sums")),
        thief.create(about("Pod", "v1", "victim")),
    ]
    for request in tried:
        with pytest.raises(ApiError, match=r"ValidatingAdmissionPolicy 'rljob-operator'.* denied request"):
            await request
    await thief.close()
    assert victim.json("get", "configmap", "plain")["data"] == STRANGER["data"]


# ---------------------------------------------------------------------------------------------- closed namespaces


def test_a_job_goes_on_once_its_namespace_is_open_and_ends_where_it_is_not(
    installation: Installation, nats_url: str, tmp_path: Path
) -> None:
    kubectl = installation.control_plane.kubectl
    watched = opened(kubectl, "door")
    remedy = "kubectl label namespace door rljob.dev/enabled=true"
    account = kubeconfig_of(kubectl, "rljob-operator", "rljob-system", tmp_path / "operator.kubeconfig")
    with Operator(account, nats_url, "door", tmp_path / "operator.log"):
        watched.apply(job("sums"))
        watched.existing("job", "sums-trainer-1")
        until(lambda: len(watched.names("pod")) == 6)
        kubectl("label", "namespace", "door", CLOSED)
        until(lambda: watched.refuses(job("tried")))
        assert f"namespace door is not open to RLJobs: a cluster administrator opens it by: {remedy}" in (
            watched.refuses(job("tried"))
        )
        with pytest.raises(ClusterError, match=remedy):
            watched.apply(job("sums", steps=4))
        watched.pods_run()  # which changes what the operator would write of a pool
        watched("delete", "deployment", "sums-reward")
        until(lambda: watched.is_true("sums", "Stalled"))
        stalled = watched.condition("sums", "Stalled")
        assert stalled is not None
        assert stalled["reason"] == "PolicyRefused"
        assert stalled["message"].startswith("Deployment sums-reward is refused, and tried again later")
        assert remedy in stalled["message"]
        kubectl("label", "namespace", "door", OPEN)
        until(lambda: watched.get("deployment", "sums-reward"))
        until(lambda: not watched.is_true("sums", "Stalled"))
        kubectl("label", "namespace", "door", CLOSED)
        until(lambda: watched.refuses(job("tried")))
        watched.apply(job("sums", steps=4, suspend=True))  # with what an audit reads, which is refused
        until(lambda: not watched.children())
        watched("delete", "rljob", "sums", "--timeout=300s")


WEB: Object = {
    "selector": {"matchLabels": {"app": "web"}},
    "template": {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "own", "image": "own"}], "restartPolicy": "Always"},
    },
}
ONCE: Object = {"spec": {**WEB["template"]["spec"], "restartPolicy": "Never"}}
BODIES: dict[str, Object] = {
    "ConfigMap": {},
    "Service": {"spec": {"ports": [{"port": 1}]}},
    "ServiceAccount": {},
    "Secret": {},
    "Pod": ONCE,
    "Deployment": {"spec": WEB},
    "Job": {"spec": {"template": ONCE}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 1}},
    "RolloutPool": {"spec": {"job": "sums", "pool": "cpu", "config": "{}", "template": {}}},
    GangKind.WORKLOAD.qualified: {
        "spec": {"podGroups": [{"name": "trainer", "policy": {"gang": {"minCount": 2}}}]}
    },
    GangKind.POD_GROUP.qualified: {"spec": {"minMember": 2}},
    GangKind.VOLCANO.qualified: {"spec": {"minMember": 2}},
}
"""What the operator writes besides jobs and events, as small as the API server takes it."""

KIND_OF: dict[tuple[str, str], str] = {
    (version.rpartition("/")[0], plural): kind for kind, (version, plural) in KINDS.items()
}


def child(kind: str, name: str, owner: Object) -> Object:
    """An object that names a job as its controller, as all of the operator's do, and whoever has its token may."""
    claims = {**owner, "controller": True}
    metadata = {
        "name": name,
        "namespace": "shut",
        "labels": {"rljob.dev/job": "sums"},
        "ownerReferences": [claims],
    }
    said = {"apiVersion": KINDS[kind][0], "kind": kind.partition(".")[0]}
    return {**said, "metadata": metadata, **BODIES[kind]}


@pytest.mark.smoke
async def test_in_a_closed_namespace_the_operator_s_token_writes_nothing(
    installation: Installation, tmp_path: Path
) -> None:
    """Every right to write that its ClusterRole gives, first where it is good for something."""
    admin = installation.control_plane.kubectl
    shut = opened(admin, "shut")
    rights = granted(admin.json("get", "clusterrole", "rljob-operator")["rules"])
    shut.apply(job("sums"))
    uid = shut.existing("rljob", "sums")["metadata"]["uid"]
    owner = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "sums", "uid": uid}
    thief = KubeApi(
        KubeLogin(kubeconfig_of(admin, "rljob-operator", "rljob-system", tmp_path / "stolen.kubeconfig"))
    )
    shut.existing("serviceaccount", "default")  # which pods need, and a controller makes
    shut.kubectl.apply([child(kind, "old", owner) for kind in BODIES])

    def attempt(right: Right) -> Callable[[], Awaitable[object]] | None:
        """What uses a right on what is a job's own; None for rights to read, and what is about jobs themselves."""
        group, resource, verb = right
        kind = KIND_OF[group, resource.partition("/")[0]]
        old = Ref(kind, "shut", "old")
        if kind not in BODIES:
            return None
        match verb, resource.partition("/")[2]:
            case "create", "":
                return lambda: thief.create(child(kind, "new", owner), dry_run=True)
            case "patch", "status":
                said = {**child(kind, "old", owner), "status": {"replicas": 1}}
                return lambda: thief.apply(said, subresource="status")
            case "patch", "":
                return lambda: thief.patch(old, NOTE)
        return None

    tried = {right: use for right in rights if (use := attempt(right)) is not None}
    for use in tried.values():
        await use()
    admin("label", "namespace", "shut", CLOSED)
    until(lambda: shut.refuses(job("tried")))
    for right, use in tried.items():
        with pytest.raises(
            ApiError, match=r"'rljob-operator-namespaces'.*may write nothing in namespace shut"
        ):
            assert await use() is None, right
    # What is left: what it reads everywhere, and the end of what jobs have made.
    left = rights - tried.keys()
    assert {verb for _, _, verb in left} == {"list", "watch", "patch", "delete", "create"}
    assert {right for right in left if right[2] in {"patch", "create"}} == {
        ("rljob.dev", "rljobs", "patch"),
        ("rljob.dev", "rljobs/status", "patch"),
        ("", "events", "create"),
    }
    for group, resource, verb in left:
        kind = KIND_OF[group, resource.partition("/")[0]]
        if verb == "list":
            await thief.list(kind, "shut", "")
        if verb == "delete" and kind in BODIES:
            await thief.delete(Ref(kind, "shut", "old"), grace=0)
    sums = Ref("RLJob", "shut", "sums")
    await thief.patch(sums, {"metadata": {"finalizers": ["example.org/kept"]}})
    await thief.patch(sums, {"metadata": {"finalizers": None}})
    await thief.create(about("RLJob", "rljob.dev/v1alpha1", "shut"))
    for request in (
        thief.patch(sums, {"spec": {"image": "a-thief-s"}}),
        thief.patch(sums, LABEL),
        thief.patch(sums, NOTE),
        thief.delete(sums),
        thief.create(about("Pod", "v1", "shut")),
    ):
        with pytest.raises(
            ApiError, match=r"ValidatingAdmissionPolicy 'rljob-(operator|namespaces)'.* denied request"
        ):
            await request
    await thief.close()


@pytest.mark.smoke
def test_no_tenant_opens_a_namespace(installation: Installation) -> None:
    """Not by the strongest of Kubernetes' own roles for namespaces, nor as the operator."""
    kubectl = installation.control_plane.kubectl
    kubectl("create", "namespace", "theirs")
    theirs = kubectl.within("theirs")
    theirs("create", "rolebinding", "tenant", "--clusterrole=admin", "--user=tenant")
    until(lambda: theirs.succeeds("auth", "can-i", "create", "rljobs.rljob.dev", "--as=tenant"))
    with pytest.raises(ClusterError, match="namespace theirs is not open to RLJobs"):
        theirs("create", "--filename=-", "--as=tenant", input_text=json.dumps(job("sums")))
    for user in ("tenant", "system:serviceaccount:rljob-system:rljob-operator"):
        for verb in ("update", "patch"):
            assert not theirs.succeeds("auth", "can-i", verb, "namespaces/theirs", f"--as={user}")


# ---------------------------------------------------------------------------------------------- people who look on


def test_who_may_view_jobs_and_forward_ports_reads_a_job_s_streams_and_nothing_else(
    installation: Installation, nats_url: str, tmp_path: Path
) -> None:
    """With `kubectl rljob`: what it does is what the two roles grant."""
    kubectl = installation.control_plane.kubectl
    watched, other = opened(kubectl, "seen"), opened(kubectl, "unseen")
    watched("create", "serviceaccount", "looker")
    user = "system:serviceaccount:seen:looker"
    bound = "--serviceaccount=seen:looker"
    watched("create", "rolebinding", "looker", "--clusterrole=rljob-view", bound)
    system = kubectl.within("rljob-system")
    system("create", "rolebinding", "looker", "--role=rljob-nats-port-forward", bound)
    account = kubeconfig_of(kubectl, "rljob-operator", "rljob-system", tmp_path / "operator.kubeconfig")
    with Operator(account, nats_url, "", tmp_path / "operator.log"):
        watched.apply(job("sums"))
        watched.existing("configmap", "sums-viewer")
        other.apply(job("sums"))
        other.existing("configmap", "sums-viewer")
        until(lambda: any(name.startswith("sums-reward-") for name in watched.names("pod")))
        until(lambda: system.succeeds("get", "pod", "nats-0"))
        own = kubeconfig_of(kubectl, "looker", "seen", tmp_path / "looker.kubeconfig")
        cluster = UserCluster(ClusterChoice(kubeconfig=str(own)))
        until(lambda: kubectl.succeeds("auth", "can-i", "get", "rljobs", "--namespace=seen", f"--as={user}"))
        viewer = JobViewer(cluster, "sums")
        config = viewer.config()
        (line, *_) = describe(
            cluster.job("sums"),
            cluster.pools("sums"),
            cluster.pods("sums"),
            cluster.warnings(),
            datetime.now(UTC),
        )
        assert line.startswith("sums: ")
        assert cluster.job_names() == ["sums"]
        until(lambda: ready_to_read(config.uid, viewer, tmp_path / "viewer.creds"))
        # No node runs these pods: there is no log, and no way to a port.
        pod = cluster.pods("sums", "reward")[0]["metadata"]["name"]
        assert list(cluster.log(pod, "reward", follow=False, previous=False, tail=1)) == []
        assert cluster.service("rljob-system", "nats") is not None
        assert cluster.selected_pods("rljob-system", "app.kubernetes.io/name=nats")
        with pytest.raises(ClusterRefused, match="cannot forward a port of pod nats-0"):
            cluster.forward("rljob-system", "nats-0", 4222)
        assert installation.refused(user) == []
        roles = [
            kubectl.json("get", "clusterrole", "rljob-view")["rules"],
            system.json("get", "role", "rljob-nats-port-forward")["rules"],
        ]
        unused = granted([rule for rules in roles for rule in rules]) - set(installation.used(user))
        watching = {("rljob.dev", kind, "watch") for kind in ("rljobs", "rolloutpools")}
        assert unused <= {*watching, ("rljob.dev", "rolloutpools", "get"), ("", "pods/portforward", "create")}
        for refused in (
            lambda: cluster.patch_job("sums", {"spec": {"suspend": True}}),
            lambda: UserCluster(ClusterChoice(namespace="unseen", kubeconfig=str(own))).job("sums"),
            lambda: UserCluster(ClusterChoice(namespace="unseen", kubeconfig=str(own))).config_map(
                "sums", "sums-viewer"
            ),
            lambda: cluster.selected_pods("kube-system", ""),
            lambda: cluster.forward("rljob-system", "rljob-operator-0", 8080),
        ):
            with pytest.raises(ClusterRefused, match="you may not"):
                refused()
        for secret in ("get", "list"):
            asked = ("auth", "can-i", secret, "secrets", "--namespace=seen", f"--as={user}")
            assert not kubectl.succeeds(*asked)
        for name in ("seen", "unseen"):
            kubectl("delete", "rljob", "sums", f"--namespace={name}", "--timeout=300s")


def ready_to_read(uid: str, viewer: JobViewer, file: Path) -> bool:
    """Whether the credentials that a viewer has open the job's streams."""
    assert viewer.write_credentials(file)
    identity = Identity("sums", "seen", uid, "", viewer.server(), {}, viewer=str(file))

    async def read() -> bool:
        store = store_of(identity, identity.nats_url, patience=5, connect=5)
        try:
            await store.open()
            return await store.last_sequence(Channel.LEDGER) >= 0
        except StoreUnavailable:  # the operator has not made them yet
            return False
        finally:
            await store.close()

    return asyncio.run(read())
