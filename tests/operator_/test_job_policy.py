"""What RLJobs may name: the admission policy and the operator refuse the same, in the same words, in every field."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.errors import ClusterError
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace
from e2e.harness.nats_server import EmbeddedServer
from installation import MANIFESTS, Object, rendered
from operators import Namespace, Operator, children_of, manifest
from ruamel.yaml import YAML
from tests.night import some
from tests.waiting import until
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_core.spec import RLJob
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.crd.definitions import crds as definitions
from rljob_operator.decisions.job_rules import CONFIG_MAP, JobRules, RulesMode
from rljob_operator.decisions.named_by_jobs import POD_TEMPLATE, SPEC
from rljob_operator.decisions.named_fields import (
    Fields,
    Items,
    Keys,
    MentionKind,
    Named,
    Node,
    Only,
    StorageUri,
    Urls,
)
from rljob_operator.reconcile.job_rules_folder import JobRulesFolder

POLICIES = MANIFESTS / "policies/jobs"
pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("job-policy")]


# ---------------------------------------------------------------------------------------------- the table


def named_fields(schema: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The fields of a schema that can hold a name: strings that are no enumerations, and free-form maps."""
    if schema["type"] == "array":
        yield from named_fields(schema["items"], (*path, "[]"))
    elif "properties" in schema:
        for name, field in schema["properties"].items():
            yield from named_fields(field, (*path, name))
    elif schema["type"] in {"string", "object"} and "enum" not in schema:
        yield path


def listed(path: tuple[str, ...], node: Node = SPEC) -> bool:
    """Whether the table has an entry for exactly this field."""
    if not path:
        return node is POD_TEMPLATE or not isinstance(node, Fields | Items)
    if isinstance(node, Items):
        return path[0] == "[]" and listed(path[1:], node.item)
    return isinstance(node, Fields) and path[0] in node.fields and listed(path[1:], node.fields[path[0]])


def test_the_table_says_of_every_field_of_the_api_whether_it_names_something() -> None:
    (version,) = definitions()["rljobs.yaml"]["spec"]["versions"]
    fields = list(named_fields(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    assert len(fields) > 30
    assert [".".join(path) for path in fields if not listed(path)] == [], (
        "add it to decisions/named_by_jobs.py"
    )


def test_a_new_field_would_be_noticed() -> None:
    assert not listed(("model", "adapterSecret"))
    assert not listed(("rollout", "pools", "[]", "nodePool"))


def test_the_file_says_what_the_table_says(tmp_path: Path) -> None:
    committed = POLICIES / "base/policy.yaml"
    assert CliRunner().invoke(app, ["job-policy", "--check", "--output", str(committed)]).exit_code == 0
    changed = tmp_path / "policy.yaml"
    changed.write_text(committed.read_text().replace("secretName", "secretname"))
    result = CliRunner().invoke(app, ["job-policy", "--check", "--output", str(changed)])
    assert result.exit_code == 1
    assert "make crds" in result.output


# ---------------------------------------------------------------------------------------------- samples


def samples(node: Node, *, template: bool = False) -> Iterator[Any]:
    """Values that name something, one each: of every entry of the table."""
    match node:
        case Named(separator=","):
            yield "nats://forbidden:4222,nats://forbidden-too:4222"
        case Named():
            yield "forbidden"
            if template:
                yield from (None, 7)
        case StorageUri():
            yield from ("pvc://forbidden/x", "s3://forbidden/x")
        case Urls():
            yield from ({"a": "http://forbidden"}, {"a": [{"b": "https://forbidden"}]}, {"a": [[["b"]]]})
        case Keys():
            yield from ({"forbidden": "x"}, {"forbidden": None}, None)
        case Only():
            yield from ("unheard", None, [])
        case Items(item=item):
            for value in samples(item, template=template):
                yield [value]
            if template:
                yield from (None, "text")
        case Fields(fields=fields):
            inner = node.template
            for field, below in fields.items():
                for value in samples(below, template=inner):
                    yield {field: value}
            if inner:
                yield {"unheard": 1}
                if template:
                    yield from (None, "text")


def jobs() -> Iterator[Object]:
    """Specs that name one thing each; all entries of a pod template in the coordinator's, some in the others'."""
    for change in samples(SPEC):
        (field,) = change
        if (
            "template" in json.dumps(change)
            and field != "coordinator"
            and "nodeSelector" not in json.dumps(change)
        ):
            continue
        if change.get("model", {}).get("cache") == "s3://forbidden/x":  # the API takes claims only
            continue
        yield completed(change)


def completed(change: Object) -> Object:
    """The spec of a small job with a change, and what the API requires beside it."""
    spec = copy.deepcopy(BASE)
    change = copy.deepcopy(change)
    for pool in change.get("rollout", {}).get("pools", []):
        pool["name"] = "cpu"
    if "evaluation" in change:
        change["evaluation"]["everySteps"] = 1
    if "data" in change.get("evaluation", {}):
        change["evaluation"]["data"].setdefault("dataset", "chain_sum")
    for held_out in (change.get("evaluation") or {}).get("sets", []):
        held_out["name"] = "heldout"
    for tracker in change.get("trackers", []):
        tracker.setdefault("name", "tensorboard")
    for data in (change.get("data", {}), change.get("evaluation", {}).get("data", {})):
        if "://" in data.get("dataset", ""):
            data["source"] = "jsonl"
    if "environment" in change.get("rollout", {}):
        change["rollout"]["environment"].setdefault("name", "game:Game")
        change["reward"] = {"functions": ["environment"]}
    for place in change.get("networking", {}).get("egress", []):
        if "cidr" in place:
            place["cidr"] = "10.0.0.0/8"
    for field, value in change.items():
        old = spec.get(field)
        spec[field] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return spec


BASE: Object = {
    "steps": 3,
    "model": {"uri": "/models/tiny"},
    "data": {"dataset": "chain_sum"},
    "rollout": {"pools": [{"name": "cpu"}]},
}


# ---------------------------------------------------------------------------------------------- on an API server


POLICY_KINDS = "validatingadmissionpolicybinding,validatingadmissionpolicy"
RULES = {
    "mode": "Enforce",
    **{kind.value: "# none but these\nallowed\n allowed-* \n" for kind in MentionKind},
}


def bound(kubectl: Kubectl, mode: str, namespace: str) -> list[Object]:
    """An overlay's objects, for one namespace of a cluster that others use."""
    objects = rendered(kubectl, POLICIES / mode)
    for found in objects:
        if found["kind"] == "ConfigMap":
            found["metadata"]["namespace"] = namespace
        else:
            found["metadata"]["name"] += f"-{namespace}"
        if found["kind"] == "ValidatingAdmissionPolicyBinding":
            found["spec"]["policyName"] += f"-{namespace}"
            found["spec"]["paramRef"]["namespace"] = namespace
            selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            found["spec"]["matchResources"] = {"namespaceSelector": selector}
    return objects


@pytest.fixture(scope="module")
def enforced(crds: SharedControlPlane) -> Iterator[Kubectl]:
    """A namespace in which the policy is enforced, with `RULES`."""
    with own_namespace(crds.kubectl, operated=False) as namespace:
        kubectl = crds.kubectl.within(namespace)
        objects = bound(kubectl, "enforce", namespace)
        for found in objects:
            if found["kind"] == "ConfigMap":
                found["data"] = RULES
        kubectl.apply(objects)
        # Until the API server has seen the ConfigMap, too, it refuses whatever there is.
        said = partial(refusal, kubectl, {**BASE, "image": "forbidden"})
        until(lambda: "may not name these images" in said(), shown=said)
        yield kubectl
        # The binding stays: without any, the API server would read no ConfigMap for a policy again (docs/operator.md).


def refusal(kubectl: Kubectl, spec: Object) -> str:
    """What the API server says to a new job; empty if it takes it."""
    return Namespace(kubectl).refuses({**manifest("tried"), "spec": spec})


def test_every_job_here_is_one_that_the_api_takes() -> None:
    every = list(jobs())
    assert len(every) > 200
    for spec in every:
        RLJob.model_validate(job_of(spec))


async def test_both_refuse_the_same_wherever_it_is_named(enforced: Kubectl, crds: SharedControlPlane) -> None:
    api, namespace = KubeApi(KubeLogin(crds.kubeconfig)), str(enforced.namespace)
    tried = [job_of(spec, namespace) for spec in some(list(jobs()), 40)]
    expected = [operator_s_refusal(job, RULES).partition("; RLJobs")[0] for job in tried]
    said = [await answer(api, job) for job in tried]
    await api.close()
    wrong = [
        found for found in zip(tried, expected, said, strict=True) if not found[1] or found[1] not in found[2]
    ]
    assert wrong == []


def job_of(spec: Object, namespace: str = "team") -> Object:
    return {**manifest("sums"), "metadata": {"name": "sums", "namespace": namespace}, "spec": spec}


def operator_s_refusal(job: Object, rules: dict[str, str]) -> str:
    spec = RLJob.model_validate(job).spec.model_dump(mode="json", by_alias=True)
    return JobRules(rules).refusal(job["metadata"]["namespace"], spec)


async def answer(api: KubeApi, job: Object) -> str:
    """What the API server says to a new job; empty if it takes it."""
    try:
        await api.apply_new(job, dry_run=True)
    except ApiError as error:
        return str(error)
    return ""


def test_what_is_allowed_passes_and_the_rest_can_be_suspended(enforced: Kubectl) -> None:
    pod = {
        "metadata": {"labels": {"allowed-label": "x"}},
        "spec": {
            "serviceAccountName": "allowed",
            "nodeSelector": {"allowed": "x"},
            "tolerations": [{"key": "allowed", "operator": "Exists"}],
            "containers": [
                {
                    "name": "trainer",
                    "image": "allowed-image:1",
                    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "allowed-a", "key": "a"}}}],
                    "securityContext": {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}},
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "allowed"}}],
        },
    }
    spec = {**BASE, "model": {"uri": "pvc://allowed/tiny"}, "trainer": {"template": pod}}
    assert refusal(enforced, spec) == ""
    # In this namespace, and no longer what all may name.
    enforced(
        "patch", "configmap", CONFIG_MAP, "--type=merge", patch(f"{enforced.namespace}.secrets", "others")
    )
    until(lambda: "spec.trainer.template.spec.containers.env.valueFrom" in refusal(enforced, spec))
    watched = Namespace(enforced)
    watched.apply(job_of({**BASE, "imagePullSecrets": ["others"]}, watched.name))
    enforced("patch", "configmap", CONFIG_MAP, "--type=merge", patch(f"{enforced.namespace}.secrets", ""))
    until(lambda: refusal(enforced, {**BASE, "imagePullSecrets": ["others"]}))
    with pytest.raises(
        ClusterError, match=r"may not name these Secrets: spec.imagePullSecrets others \(allowed: none"
    ):
        watched.patch("rljob", "sums", {"spec": {"steps": 5}})
    watched.patch("rljob", "sums", {"metadata": {"finalizers": ["example.org/kept"]}})
    watched.patch("rljob", "sums", {"metadata": {"finalizers": None}})
    watched.patch("rljob", "sums", {"spec": {"suspend": True}})
    with pytest.raises(ClusterError, match="may not name these Secrets"):
        watched.patch("rljob", "sums", {"spec": {"suspend": False}})
    watched("delete", "rljob", "sums")
    enforced("patch", "configmap", CONFIG_MAP, "--type=merge", patch(f"{enforced.namespace}.secrets", None))
    until(lambda: refusal(enforced, spec) == "")


def test_where_any_server_is_allowed_a_deep_claim_is_refused_by_both(enforced: Kubectl) -> None:
    tracker = {"name": "Mine", "options": {"a": [{"b": {"c": "pvc://others/x"}}]}}
    spec = {**BASE, "trackers": [tracker]}
    rules = {**RULES, "servers": "*"}
    said = operator_s_refusal(job_of(spec, str(enforced.namespace)), rules)
    assert "may not name these PersistentVolumeClaims: spec.trackers.options (nested too deep)" in said
    enforced("patch", "configmap", CONFIG_MAP, "--type=merge", patch("servers", "*"))
    until(lambda: said in refusal(enforced, spec))
    enforced("patch", "configmap", CONFIG_MAP, "--type=merge", patch("servers", RULES["servers"]))
    until(lambda: "these servers" in refusal(enforced, {**BASE, "trackers": [{"name": "Mine"}]}))


def patch(key: str, value: str | None) -> str:
    return f"--patch={json.dumps({'data': {key: value}})}"


def test_as_large_as_jobs_get_is_checked_within_what_the_api_server_spends(enforced: Kubectl) -> None:
    env = [
        {"name": f"V{n}", "valueFrom": {"secretKeyRef": {"name": "allowed", "key": "a"}}} for n in range(50)
    ]
    pod = {"spec": {"containers": [{"name": "rollout", "image": "allowed", "env": env}]}}
    pools = [{"name": f"p{n}", "template": pod} for n in range(64)]
    assert refusal(enforced, {**BASE, "rollout": {"pools": pools}}) == ""
    pods = json.loads(json.dumps(pools))  # no template is another one
    pods[63]["template"]["spec"]["containers"][0]["env"][49]["valueFrom"]["secretKeyRef"]["name"] = (
        "forbidden"
    )
    assert "secretKeyRef.name forbidden (allowed" in refusal(enforced, {**BASE, "rollout": {"pools": pods}})


def test_many_names_and_long_ones_are_shown_in_part_by_both(enforced: Kubectl) -> None:
    def naming(*names: str) -> Object:
        volumes = [{"name": "v", "secret": {"secretName": name}} for name in names]
        return {**BASE, "coordinator": {"template": {"spec": {"volumes": volumes}}}}

    path = "spec.coordinator.template.spec.volumes.secret.secretName "
    for spec, shown in (
        (naming(*(f"n{n}" for n in range(200))), f"{path}n9 and 190 more (allowed: allowed, allowed-*;"),
        (naming("x" * 20_000), f"Secrets: {path}{'x' * (200 - len(path))}... (allowed"),
    ):
        said = operator_s_refusal(job_of(spec, str(enforced.namespace)), RULES)
        assert shown in said
        assert said in refusal(enforced, spec)
    # Of what is too long all the same, the API server says what fits every job.
    fixed = (
        "RLJobs may not name these Secrets: the line secrets of ConfigMap rljob-job-rules says which they may"
    )
    assert fixed in refusal(enforced, naming(*(f"{n}{chr(0x1D11E) * 300}" for n in range(10))))


@pytest.mark.parametrize("mode", ["off", "warn", "enforce"])
def test_what_each_overlay_does(control_plane: SharedControlPlane, mode: str) -> None:
    objects = rendered(control_plane.kubectl, POLICIES / mode)
    (binding,) = (found for found in objects if found["kind"] == "ValidatingAdmissionPolicyBinding")
    (rules,) = (found for found in objects if found["kind"] == "ConfigMap")
    actions = {"off": ["Audit"], "warn": ["Warn", "Audit"], "enforce": ["Deny", "Audit"]}
    assert binding["spec"]["validationActions"] == actions[mode]
    assert JobRules(rules["data"]).mode is RulesMode(mode.capitalize())
    assert set(MentionKind) <= set(rules["data"])


def test_the_shipped_rules_allow_the_examples() -> None:
    rules = YAML(typ="safe").load((POLICIES / "base/rules.yaml").read_text())["data"]
    checked = 0
    for file in (MANIFESTS / "examples").glob("*.yaml"):
        for found in YAML(typ="safe").load_all(file.read_text()):
            if found["kind"] == "RLJob":
                assert (
                    operator_s_refusal({**found, "metadata": {"name": "sums", "namespace": "team"}}, rules)
                    == ""
                )
                checked += 1
    assert checked > 8


# ---------------------------------------------------------------------------------------------- the operator


def test_modes_of_the_operator() -> None:
    job = RLJob.model_validate(job_of({**BASE, "image": "forbidden"}))
    for data, allows, warns in (
        ({}, True, False),
        ({"mode": "Off"}, True, False),
        ({"mode": "Warn"}, True, True),
        ({"mode": "Enforce"}, False, False),
        ({"mode": "enforced"}, False, False),
        ({"images": "other"}, False, False),
        ({"mode": "Enforce", "images": "forbidden"}, True, False),
        ({"mode": "Enforce", "images": "*", "team.images": "other"}, False, False),
    ):
        rules = JobRules(data)
        assert (rules.allows(job), bool(rules.warning(job))) == (allows, warns), data


def test_rules_that_cannot_be_read_allow_nothing_until_they_can_and_later_change_nothing(
    tmp_path: Path,
) -> None:
    assert JobRulesFolder(None).rules.mode is RulesMode.OFF
    images, mode = tmp_path / "images", tmp_path / "mode"
    images.write_bytes(b"\xff")
    folder = JobRulesFolder(str(tmp_path))
    assert folder.rules.mode is RulesMode.ENFORCE
    assert folder.rules.refusal("here", {"model": {"uri": "pvc://a/model"}})
    images.unlink()
    assert folder.refresh()
    assert folder.rules.mode is RulesMode.OFF, "an optional ConfigMap that is not there is an empty folder"
    mode.write_text("Warn")
    assert folder.refresh()
    images.write_bytes(b"\xff")
    assert not folder.refresh()
    assert folder.rules.mode is RulesMode.WARN


def test_the_operator_makes_nothing_of_a_job_that_the_rules_forbid(
    crds: SharedControlPlane,
    nats_server: EmbeddedServer,
    watched: Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With rules that were stricter than the policy, or came after the job; and then they change."""
    rules = tmp_path / "rules"
    rules.mkdir()
    for key, value in {**dict.fromkeys(MentionKind, "*"), "mode": "Enforce", "secrets": "rljob-*"}.items():
        (rules / key).write_text(value)
    monkeypatch.setenv("RLJOB_JOB_RULES", str(rules))
    with Operator(crds.kubeconfig, nats_server.url, watched.name, tmp_path / "operator.log"):
        watched.apply(manifest("sums", imagePullSecrets=["registry"]))
        until(lambda: watched.is_true("sums", "Stalled"))
        stalled = watched.condition("sums", "Stalled")
        assert stalled is not None
        assert stalled["reason"] == "NotAllowed"
        assert stalled["message"].startswith(
            f"RLJobs in namespace {watched.name} may not name these Secrets: spec.imagePullSecrets registry "
            "(allowed: rljob-*; ask who runs rljob here"
        )
        assert not watched.children()
        (rules / f"{watched.name}.secrets").write_text("registry")
        until(lambda: children_of("sums") <= watched.children())
        until(lambda: not watched.is_true("sums", "Stalled"))
        (rules / f"{watched.name}.secrets").write_text("")
        until(lambda: watched.is_true("sums", "Stalled"))
        watched("delete", "deployment", "sums-reward")
        watched.apply(manifest("sums", imagePullSecrets=["registry"], steps=4))
        until(lambda: watched.existing("rljob", "sums")["status"]["observedGeneration"] == 2)
        assert watched.children() == children_of("sums") - {"deployment/sums-reward"}, "what runs goes on"
        watched("delete", "rljob", "sums", "--timeout=300s")


DENIED: Object = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["apps"],
                    "apiVersions": ["*"],
                    "operations": ["CREATE"],
                    "resources": ["deployments"],
                }
            ]
        },
        "validations": [{"expression": "false", "message": "not on a Monday"}],
    },
}


def test_a_policy_s_refusal_of_a_child_is_named_and_tried_again(
    crds: SharedControlPlane, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> None:
    name = {"name": f"no-deployments-{watched.name}"}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": watched.name}}
    binding = {
        "apiVersion": DENIED["apiVersion"],
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": name,
        "spec": {
            "policyName": name["name"],
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": WEB}
    crds.kubectl.apply([{**DENIED, "metadata": name}, binding])
    try:
        until(lambda: watched.refuses(web))
        with Operator(crds.kubeconfig, nats_server.url, watched.name, tmp_path / "operator.log"):
            watched.apply(manifest("sums"))
            until(lambda: watched.is_true("sums", "Stalled"))
            stalled = watched.condition("sums", "Stalled")
            assert stalled is not None
            assert stalled["reason"] == "PolicyRefused"
            assert stalled["message"].startswith("Deployment sums-")
            assert f"ValidatingAdmissionPolicy '{name['name']}'" in stalled["message"]
            assert "not on a Monday" in stalled["message"]
            crds.kubectl("delete", "validatingadmissionpolicybinding", name["name"])
            until(lambda: children_of("sums") <= watched.children())
            until(lambda: not watched.is_true("sums", "Stalled"))
    finally:
        crds.kubectl("delete", POLICY_KINDS, name["name"], "--ignore-not-found")


WEB: Object = {
    "selector": {"matchLabels": {"app": "web"}},
    "template": {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "own", "image": "own"}]},
    },
}
