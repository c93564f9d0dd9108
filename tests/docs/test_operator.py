"""What docs/kubernetes.md and docs/operator.md say of fields, reasons, variables and metrics is what the code does."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.kubectl import Kubectl
from installation import CHECKOUT, MANIFESTS, Asked, moved, of_kind, rendered
from pydantic import BaseModel
from ruamel.yaml import YAML

from rljob_core.failures import Reason
from rljob_core.spec import Immutable, RLJob, RLJobSpec, model_in
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.names import WORKERS, Role
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_operator.settings import Settings
from rljob_operator.telemetry import OperatorMetrics

Object = dict[str, Any]

USER_PAGE = (CHECKOUT / "docs/kubernetes.md").read_text()
OPERATOR_PAGE = (CHECKOUT / "docs/operator.md").read_text()

JOB: Object = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sums", "namespace": "default", "uid": "u-1", "generation": 1},
    "spec": {
        "steps": 3,
        "model": {"uri": "/model"},
        "data": {"dataset": "chain_sum"},
        "evaluation": {},
        "algorithm": {"decaySteps": 9},
        "rollout": {"pools": [{"name": "one", "replicas": 2}, {"name": "other"}]},
        "trackers": [{"name": "WandB"}],
        "networking": {"egress": [{"cidr": "10.0.0.0/8"}]},
    },
}
# Another value of each field that may change while a job runs.
LABELLED = {"metadata": {"labels": {"a": "b"}}}
CHANGES: Mapping[str, Any] = {
    "image": "another",
    "imagePullSecrets": ["registry"],
    "steps": 4,
    "model.credentialsSecret": "hub",
    "model.cache": "pvc://cache/hub",
    "evaluation.everySteps": 7,
    "evaluation.samples": 7,
    "reward.replicas": 2,
    "reward.timeoutSeconds": 7.0,
    "reward.timeoutScore": -1.0,
    "reward.network": True,
    "reward.template": LABELLED,
    "samples.share": 0.5,
    "samples.keepBytes": 7,
    "algorithm.loss": "DAPO",
    "algorithm.learningRate": 0.5,
    "algorithm.warmupSteps": 7,
    "algorithm.learningRateSchedule": "Cosine",
    "algorithm.decaySteps": 7,
    "algorithm.minLearningRate": 1e-7,
    "algorithm.truncated": "Mask",
    "algorithm.truncationPenalty": 0.5,
    "algorithm.weightDecay": 0.5,
    "algorithm.maxGradNorm": 0.5,
    "algorithm.clip": 0.5,
    "algorithm.clipHigh": 0.5,
    "algorithm.kl": 0.5,
    "algorithm.importanceSampling": "None",
    "algorithm.importanceCap": 0.5,
    "algorithm.scaleByStd": False,
    "algorithm.dropUniformGroups": True,
    "pipeline.mode": "Streaming",
    "pipeline.maxStaleness": 7,
    "pipeline.inflight": "Keep",
    "pipeline.maxAttempts": 7,
    "pipeline.maxResamples": 7,
    "pipeline.window": 0.5,
    "rollout.engine.name": "Emulated",
    "rollout.engine.options": {"slots": 7},
    "rollout.lengthPredictor.name": "PromptMeans",
    "rollout.lengthPredictor.options": {"groups": 7},
    "rollout.progressTokens": 7,
    "rollout.hangSeconds": 7,
    "rollout.weightSync": "WhenNeeded",
    "rollout.sampling.temperature": 0.5,
    "rollout.sampling.topP": 0.5,
    "rollout.sampling.maxTokens": 7,
    "rollout.sampling.stop": ["."],
    "rollout.pools.replicas": 7,
    "rollout.pools.scaling.policy": "External",
    "rollout.pools.scaling.owner": "Hub",
    "rollout.pools.scaling.minReplicas": 2,
    "rollout.pools.scaling.maxReplicas": 7,
    "rollout.pools.engine.options": {"slots": 7},
    "rollout.pools.costPerHour": "2.10",
    "rollout.pools.interruptionsPerHour": 0.5,
    "rollout.autoscaling.budgetPerHour": "20",
    "rollout.autoscaling.deadlineSeconds": 7200,
    "rollout.autoscaling.trainerWaiting": 0.1,
    "rollout.autoscaling.stabilizationWindowSeconds": 60,
    "rollout.pools.template": LABELLED,
    "trainer.numNodes": 2,
    "trainer.minNodes": 1,
    "trainer.gang": "None",
    "trainer.numProcPerNode": 2,
    "trainer.microBatchTokens": 7,
    "trainer.options": {"threads": 1},
    "trainer.checkpoint.everySteps": 7,
    "trainer.checkpoint.keepBest": True,
    "trainer.template": LABELLED,
    "coordinator.template": LABELLED,
    "weights.keepVersions": 7,
    "weights.delta.anchorEvery": 7,
    "nats.credentialsSecret": "nats",
    "nats.credentialsGeneration": 1,
    "nats.replicas": 3,
    "networking.egress.cidr": "10.1.0.0/16",
    "networking.egress.ports": [443],
    "trackers.name": "MLflow",
    "trackers.options": {"mode": "offline"},
    "trackers.image": "another",
    "trackers.samples": 4,
    "trackers.timeoutSeconds": 7.0,
    "trackers.credentialsSecret": "hub",
    "backoffLimit": 7,
    "activeDeadlineSeconds": 7,
    "ttlSecondsAfterFinished": 7,
}
# In place of `cidr`; told elsewhere; a pool's key; fields of which this release has one value only, or none.
_NOT_TOLD = {
    "networking.egress.namespace",
    "suspend",
    "rollout.pools.name",
} | {f"rollout.environment.{field}" for field in ("name", "options", "maxTurns")}


def tables(page: str, first: str) -> list[list[str]]:
    """Rows, by their cells, of the table whose head begins with that cell."""
    (body,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# ------------------------------------------------------------------------------------- which change restarts what


def changeable(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Fields that an API server lets change."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}" if path else field.alias or name
        below = model_in(field.annotation)
        if any(isinstance(mark, Immutable) for mark in field.metadata):
            continue
        if below is None:
            yield here
        else:
            yield from changeable(below, here)


def changed(path: str, value: Any) -> RLJob:
    manifest = copy.deepcopy(JOB)
    target: Any = manifest["spec"]
    *steps, last = path.split(".")
    for step in steps:
        target = target.setdefault(step, {})
        target = target[0] if isinstance(target, list) else target
    if "scaling" in steps:
        del manifest["spec"]["rollout"]["pools"][0]["replicas"]
        target["maxReplicas"] = 8
    target[last] = value
    return RLJob.model_validate(manifest)


def templates(job: RLJob) -> dict[str, str]:
    """Pod templates by role, those of pools by `rollout` and the pool; the second pool is nobody's business here."""
    defaults = ClusterDefaults(
        nats_url="tls://nats:4222",
        weights_uri="/w",
        checkpoint_uri="/c",
        trainer_log_uri="/t",
        issuer=issuer(Seeds.complete({}, bytes)),
    )
    found = {}
    uid = {"metadata": {"uid": "u-2"}, "spec": {}}
    for child in desired(resolve_job(job, defaults), Targets(1, 0, {"one": uid, "other": uid})):
        if child["kind"] in {"Deployment", "Job"}:
            labels = child["metadata"]["labels"]
            name = f"{labels['rljob.dev/role']} {labels.get('rljob.dev/pool', '')}".strip()
            size = child["spec"].get("completions")
            found[name] = json.dumps([child["spec"]["template"], size], sort_keys=True)
    return found


def restarted_by(path: str) -> set[str]:
    """What the page says restarts."""
    rows = {name: row[1] for row in tables(USER_PAGE, "field") for name in quoted(row[0])}
    longest = max((name for name in rows if f"{path}.".startswith(f"{name}.")), key=len)
    words = rows[longest]
    pools = {"rollout one", "rollout other"}
    if words.startswith("everything"):
        return {*(role.value for role in WORKERS if role is not Role.ROLLOUT), *pools}
    if words.startswith("nothing"):
        return set()
    if words.startswith("that role, or pool") and not path.startswith("rollout.pools"):
        return {path.split(".", maxsplit=1)[0]}
    if words in {"rollout, that pool", "that role, or pool"}:
        return {"rollout one"}
    return {name for word in words.split(", ") for name in (pools if word == "rollout" else {word})}


def test_every_field_that_may_change_is_tried() -> None:
    assert set(CHANGES) == set(changeable(RLJobSpec)) - _NOT_TOLD


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_restarts_what_the_page_says(path: str) -> None:
    before, after = templates(RLJob.model_validate(JOB)), templates(changed(path, CHANGES[path]))
    assert {name for name in before if before[name] != after[name]} == restarted_by(path)


# ------------------------------------------------------------------------------------- reasons


def sources() -> str:
    return "\n".join(file.read_text() for file in (CHECKOUT / "operator/rljob_operator").rglob("*.py"))


def test_every_reason_is_one_of_the_operator() -> None:
    reasons = {name for row in tables(USER_PAGE, "reason") for name in quoted(row[0])}
    reasons -= {"Stalled", "Failed"}
    waited_for = set(Role) - {Role.TRACKER}
    made = {f"{role.value.capitalize()}NotReady" for role in waited_for} | {
        "SecretNotFound",
        "ConfigMapNotFound",
    }
    assert reasons > made
    text = sources()
    assert [reason for reason in reasons - made - set(Reason) if f'"{reason}"' not in text] == []


def test_every_event_is_one_of_the_operator() -> None:
    (paragraph,) = re.findall(r"^Events report .*?\n\n?\Z", USER_PAGE, re.MULTILINE | re.DOTALL)
    text = sources()
    assert len(quoted(paragraph)) >= 6
    assert [event for event in quoted(paragraph) if f'"{event}"' not in text] == []


# ------------------------------------------------------------------------------------- variables and metrics


def test_the_page_has_every_variable_with_its_default() -> None:
    asked = Asked({"RLJOB_NATS_URL": "nats://nats:4222", "RLJOB_LEASE": "any", "POD_NAMESPACE": "any"})
    settings = Settings.read(asked)
    rows = {name: row for row in tables(OPERATOR_PAGE, "variable") for name in quoted(row[0])}
    assert rows.keys() == asked.names
    assert rows["RLJOB_WORKER_IMAGE"][1] == f"`{settings.defaults.image}`"
    assert rows["RLJOB_WORKERS"][1] == str(settings.workers)
    assert rows["RLJOB_PROBE_PORT"][1] == f"`{settings.probe_host}`, {settings.probe_port}"
    assert rows["RLJOB_LOG_LEVEL"][1] == f"`{settings.log_level}`, `{settings.log_format}`"


def test_the_manifests_set_what_the_page_says(kubectl: Kubectl) -> None:
    (operator,) = of_kind(rendered(kubectl, MANIFESTS), "Deployment")
    entries = operator["spec"]["template"]["spec"]["containers"][0]["env"]
    given = {entry["name"]: entry["value"] for entry in entries if "value" in entry}
    assert {entry["name"] for entry in entries} - given.keys() == {"POD_NAME", "POD_NAMESPACE"}
    rows = {name: row[2] for row in tables(OPERATOR_PAGE, "variable") for name in quoted(row[0])}
    assert given.keys() == {name for name, cell in rows.items() if cell}
    shown = {name: quoted(cell)[0] for name, cell in rows.items() if quoted(cell)}
    assert shown == {name: given[name] for name in shown}
    assert {name for name in given if name not in shown} == {name for name in given if "/etc/" in given[name]}


def test_the_page_has_every_metric_with_its_labels() -> None:
    metrics = OperatorMetrics()
    metrics.count_request("GET", "Pod", 200)
    found = {}
    for family in metrics.registry.collect():
        if family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    rows = {quoted(row[0])[0]: row[1] for row in tables(OPERATOR_PAGE, "metric")}
    assert rows.keys() == found.keys()
    for name, labels in found.items():
        assert labels <= set(quoted(rows[name]))


# ------------------------------------------------------------------------------------- manifests


def blocks(page: str) -> list[Object]:
    texts = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return [dict(found) for text in texts for found in YAML(typ="safe").load_all(text)]


def test_the_kustomization_says_where_images_come_from(kubectl: Kubectl, tmp_path: Path) -> None:
    shown = blocks(OPERATOR_PAGE)[0]
    ours = moved(
        MANIFESTS, "rljob-system", tmp_path / "ours", images=shown["images"], patches=shown["patches"]
    )
    objects = rendered(kubectl, ours)
    (operator,) = of_kind(objects, "Deployment")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/rljob-operator:0.1.0"
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["RLJOB_WORKER_IMAGE"] == "registry.example/rljob-worker:0.1.0"
    assert environment["RLJOB_NATS_URL"] == "tls://nats.rljob-system:4222"
    (setup,) = of_kind(objects, "Job")
    assert setup["spec"]["template"]["spec"]["containers"][0]["image"] == container["image"]


def test_the_places_that_the_pages_show_are_allowed(tmp_path: Path) -> None:
    (shown,) = [found for found in blocks(OPERATOR_PAGE) if "egress.yaml" in found.get("data", {})]
    (tmp_path / "egress.yaml").write_text(shown["data"]["egress.yaml"])
    settings = Settings.read(
        {
            "RLJOB_NATS_URL": "nats://nats:4222",
            "RLJOB_STORAGE": "pvc://rljob",
            "RLJOB_WORKER_EGRESS": str(tmp_path / "egress.yaml"),
        }
    )
    (job,) = [found["spec"] for found in blocks(USER_PAGE) if "networking" in found.get("spec", {})]
    resolved = resolve_job(changed("networking", job["networking"]), settings.defaults)
    policies = [child for child in desired(resolved, Targets(1, 0, {})) if child["kind"] == "NetworkPolicy"]
    # That of the trackers adds places to the workers'.
    policies = [policy for policy in policies if policy["metadata"]["name"] != "sums-trackers"]
    minio = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "minio"}}}
    ports = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    assert len(policies) == 3, "of the workers, audits, and backups"
    for policy in policies:
        assert policy["spec"]["egress"][-3:] == [
            {"to": [minio], "ports": [{"protocol": "TCP", "port": 9000}]},
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"protocol": "TCP", "port": 443}]},
            {"to": [{"ipBlock": {"cidr": "10.0.0.2/32"}}], "ports": ports},
        ]


def test_the_worker_template_reaches_every_pod(tmp_path: Path) -> None:
    (shown,) = [found for found in blocks(OPERATOR_PAGE) if "template.yaml" in found.get("data", {})]
    file = tmp_path / "template.yaml"
    file.write_text(shown["data"]["template.yaml"])
    settings = Settings.read(
        {
            "RLJOB_NATS_URL": "nats://nats:4222",
            "RLJOB_STORAGE": "pvc://rljob",
            "RLJOB_WORKER_TEMPLATE": str(file),
        }
    )
    uid = {"metadata": {"uid": "u-2"}, "spec": {}}
    children = desired(
        resolve_job(RLJob.model_validate(JOB), settings.defaults), Targets(1, 0, {"one": uid, "other": uid})
    )
    workloads = [child for child in children if child["kind"] in {"Deployment", "Job"}]
    assert len(workloads) == 6
    for workload in workloads:
        spec = workload["spec"]["template"]["spec"]
        assert spec["priorityClassName"] == "training"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        container, *scorer = spec["containers"]
        assert [each["name"] for each in scorer] == (["scorer"] if container["name"] == "reward" else [])
        assert "env" not in json.dumps(scorer), (
            "credentials of workers are not for the functions that they have run"
        )
        assert {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"} in container["env"]


def test_the_autoscalers_name_a_pool(kubectl: Kubectl) -> None:
    scaler, scaled = [shown for shown in blocks(USER_PAGE) if "kind" in shown]
    kubectl("create", "--filename=-", "--dry-run=server", "--validate=strict", input_text=json.dumps(scaler))
    pool = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RolloutPool", "name": "chain-sum-rollout-local"}
    assert scaler["spec"]["scaleTargetRef"] == scaled["spec"]["scaleTargetRef"] == pool
