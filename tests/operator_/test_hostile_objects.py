"""What one tenant writes stops nobody else: objects of any depth and size, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from e2e.harness.errors import ClusterError
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.nats_server import EmbeddedServer
from installation import MANIFESTS
from operators import Namespace, Operator, children_of, manifest
from test_answers import nested
from test_strangers import owned
from tests.waiting import until

from rljob_operator.names import LABEL_JOB, LABEL_ROLE

pytestmark = pytest.mark.xdist_group("operator")

_LEVELS = 1_100
_PLACES = (
    ("data", "options"),
    ("trainer", "options"),
    ("trainer", "template", "spec", "containers", "resources", "limits"),
    ("rollout", "lengthPredictor", "options"),
)


@pytest.fixture
def operator(
    crds: SharedControlPlane, watched: Namespace, nats_server: EmbeddedServer, tmp_path: Path
) -> Iterator[Operator]:
    with Operator(crds.kubeconfig, nats_server.url, watched.name, tmp_path / "operator.log") as running:
        yield running


def deep(name: str, place: tuple[str, ...], *, suspend: bool, levels: int = _LEVELS) -> str:
    """A job with a value that is nested too deeply, as text: Python's own writer refuses it."""
    job = {**manifest(), "metadata": {"name": name}}
    job["spec"] = {**json.loads(json.dumps(job["spec"])), "suspend": suspend}
    at = job["spec"]
    for field in place[:-1]:
        at = at.setdefault(field, {})
    at[place[-1]] = {"x": "DEEP"}
    return json.dumps(job).replace('"DEEP"', nested(levels))


def make(watched: Namespace, text: str) -> None:
    watched.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input_text=text)


def refusal(watched: Namespace, text: str) -> str:
    """What the API server says to a new object; empty if it takes it. Nothing is written."""
    try:
        watched.kubectl("create", "--dry-run=server", "--filename=-", input_text=text)
    except ClusterError as error:
        return str(error)
    return ""


def stalled(watched: Namespace, name: str) -> str:
    condition = '.status.conditions[?(@.type=="Stalled")]'
    fields = " ".join(f"{{{condition}.{field}}}" for field in ("status", "reason", "message"))
    return watched("get", "rljob", name, f"--output=jsonpath={fields}")


def test_a_job_that_is_nested_too_deeply_is_its_own_error_alone(
    operator: Operator, watched: Namespace
) -> None:
    names = [f"deep-{number}" for number in range(len(_PLACES))]
    for number, (name, place) in enumerate(zip(names, _PLACES, strict=True)):
        make(watched, deep(name, place, suspend=number % 2 == 0))
    watched.apply({**manifest(), "metadata": {"name": "turned"}})
    until(lambda: watched.children() == children_of("turned"))
    make(watched, deep("turned", _PLACES[2], suspend=False))
    for name in (*names, "turned"):
        until(lambda name=name: "True InvalidSpec" in stalled(watched, name))
        assert "must not be nested more than 16 levels deep" in stalled(watched, name)
        until(lambda name=name: watched.events(name, "InvalidSpec"))
    assert watched.children() == children_of("turned")  # what it has, it keeps
    operator.stop()
    operator.start()
    watched.apply(manifest())
    until(lambda: watched.children() == children_of("sums") | children_of("turned"))
    watched("delete", "rljob", "--all", "--timeout=300s")
    until(lambda: watched.children() == set())
    assert operator.runs


def test_what_others_write_costs_the_operator_little(operator: Operator, watched: Namespace) -> None:
    operator.stop()
    for number in range(40):
        metadata = {"name": f"large-{number}", "labels": {LABEL_JOB: "sums"}}
        text = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": metadata,
                "data": {"text": "x" * 1_000_000},
            }
        )
        watched.kubectl("create", "--filename=-", input_text=text)
        job = {**manifest(), "metadata": {"name": f"large-{number}"}}
        job["spec"] = {
            **job["spec"],
            "suspend": True,
            "data": {**job["spec"]["data"], "options": {"x": "x" * 1_000_000}},
        }
        watched.kubectl("create", "--filename=-", input_text=json.dumps(job))
    operator.start()
    watched.apply(manifest())
    until(lambda: children_of("sums") <= watched.children())
    until(lambda: "the RLJob has 9" in stalled(watched, "large-39"))
    watched("delete", "rljob", "--all", "--timeout=300s")
    assert psutil.Process(operator.pid).memory_info().rss < 160 << 20


def test_what_others_make_of_a_jobs_objects_stops_no_other_job_and_not_its_end(
    operator: Operator, watched: Namespace
) -> None:
    watched.apply({**manifest(), "metadata": {"name": "victim"}})
    until(lambda: watched.children() == children_of("victim"))
    victim = watched.existing("rljob", "victim")
    labels = {LABEL_JOB: "victim", LABEL_ROLE: "nobody"}
    strange = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strange", "labels": labels}}
    watched.apply(owned(strange, victim))
    until(lambda: watched.get("configmap", "strange") is None)  # it is none that the job wants
    pool = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": "mine", "labels": labels},
    }
    spec = {**watched.existing("rolloutpool", "victim-rollout-cpu")["spec"], "template": {"x": "DEEP"}}
    make(watched, json.dumps({**pool, "spec": spec}).replace('"DEEP"', nested(_LEVELS)))
    config = watched.existing("configmap", "victim-config")
    field = {
        "manager": "me",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": "DEEP",
    }
    config["metadata"]["managedFields"] = [field]
    deep_fields = '{"f:a":' * _LEVELS + "{}" + "}" * _LEVELS
    watched.kubectl("replace", "--filename=-", input_text=json.dumps(config).replace('"DEEP"', deep_fields))
    watched("label", "deployment", "victim-reward", f"{LABEL_ROLE}-")
    until(lambda: watched.events("victim", "ReconcileFailed"))
    watched.apply({**manifest(), "metadata": {"name": "others"}})
    until(lambda: children_of("others") <= watched.children())
    operator.stop()
    operator.start()
    watched("delete", "rljob", "victim", "--timeout=180s")
    assert watched.events("victim", "ChildrenLeft")
    until(lambda: not children_of("victim") & watched.children())
    assert operator.runs


def test_the_admission_policy_refuses_what_is_nested_too_deeply(
    crds: SharedControlPlane, watched: Namespace
) -> None:
    policy = MANIFESTS / "policies/depth/policy.yaml"
    crds.kubectl("apply", "--server-side", f"--filename={policy}")
    try:
        until(lambda: "more than 24 levels" in refusal(watched, deep("deep", _PLACES[0], suspend=True)))
        for place in _PLACES:
            assert "more than 24 levels" in refusal(watched, deep("deep", place, suspend=False))
            assert refusal(watched, deep("deep", place, suspend=True, levels=15)) == ""
    finally:
        crds.kubectl("delete", f"--filename={policy}")
