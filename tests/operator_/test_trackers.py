"""The pods of experiment trackers: what they may do, and that nothing but their own condition depends on them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from small_job import MakeJob
from test_status import Run

from rljob_core.errors import SpecError
from rljob_core.failures import Failure, Reason, termination_message
from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_mentions import mentions
from rljob_operator.decisions.named_fields import TOO_DEEP
from rljob_operator.decisions.tracker_conditions import degraded_trackers

TRACKERS = [
    {"name": "WandB", "credentialsSecret": "wandb", "image": "trackers:1"},
    {"name": "TensorBoard", "options": {"directory": "pvc://logs/sums"}},
    {"name": "MLflow", "options": {"trackingUri": "http://mlflow.ml:5000"}},
]

OF_WANDB, OF_TENSORBOARD, OF_MLFLOW = (
    f"chain-sum-tracker-{names.tracker_part(str(tracker['name']))}" for tracker in TRACKERS
)


@pytest.fixture
def run(server: Any, defaults: ClusterDefaults) -> Run:
    return Run(server, defaults)


def of_trackers(job: RLJob, defaults: ClusterDefaults, kind: str) -> list[Manifest]:
    made = desired(resolve_job(job, defaults), Targets(1, 0, {}))
    return [m for m in made if m["kind"] == kind and "-tracker" in m["metadata"]["name"]]


def test_a_job_without_trackers_has_none(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    made = desired(resolve_job(make_job(), defaults), Targets(1, 0, {}))
    assert not [m for m in made if "tracker" in m["metadata"]["name"]]


def test_each_tracker_has_a_pod_with_what_is_its_own(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    job = make_job(trackers=TRACKERS, model__credentialsSecret="hub", model__uri="pvc://models/tiny")
    found = of_trackers(job, defaults, "Deployment")
    assert [m["metadata"]["name"] for m in found] == [OF_WANDB, OF_TENSORBOARD, OF_MLFLOW]
    for number, deployment in enumerate(found):
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        variables = {v["name"]: v.get("value") for v in container["env"]}
        assert container["command"] == ["python", "-m", "rljob_runtime.main", "tracker"]
        assert variables["RLJOB_TRACKER"] == TRACKERS[number]["name"]
        assert "RLJOB_TRACKER_FOLDER" not in variables
        assert float(variables["RLJOB_TRACKER_HANDOVER_SECONDS"]) > spec["terminationGracePeriodSeconds"]
        assert container["image"] == ("trackers:1" if number == 0 else resolve_job(job, defaults).image)
        secrets = [source["secretRef"]["name"] for source in container.get("envFrom", [])]
        assert secrets == (["wandb"] if number == 0 else [])
        claims = [m for m in container["volumeMounts"] if "claims" in m["mountPath"]]
        assert claims == ([{"name": "claim-logs", "mountPath": "/mnt/claims/logs"}] if number == 1 else [])
        assert deployment["spec"]["selector"]["matchLabels"].items() <= (
            deployment["spec"]["template"]["metadata"]["labels"].items()
        )
    selectors = [m["spec"]["selector"]["matchLabels"] for m in found]
    assert len({tuple(selector.items()) for selector in selectors}) == 3
    config = resolve_job(job, defaults).config.spec
    assert config.trackers[1].options == {"directory": "/mnt/claims/logs/sums"}
    assert job.spec.trackers[1].options == TRACKERS[1]["options"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_tracker_that_gets_samples_reads_their_claim_and_no_other_tracker_does(
    make_job: MakeJob, defaults: ClusterDefaults, kept: bool
) -> None:
    wanting = [{**TRACKERS[0], "samples": 4}, {**TRACKERS[1], "samples": 4}, TRACKERS[2]]
    wanting[1]["options"] = {"directory": "pvc://checkpoints/curves"}
    job = make_job(
        trackers=wanting,
        trainer__checkpoint={"uri": "pvc://checkpoints/sums"},
        weights__uri="pvc://weights/sums",
        samples={} if kept else {"keepBytes": 0},
    )
    mounts = []
    for deployment in of_trackers(job, defaults, "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        mounts.append([m for m in container["volumeMounts"] if "claims" in m["mountPath"]])
        claims = [v["name"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
        assert claims == [mount["name"] for mount in mounts[-1]]
    claim = {"name": "claim-checkpoints", "mountPath": "/mnt/claims/checkpoints"}
    assert mounts == [[{**claim, "readOnly": True}] if kept else [], [claim], []]


def test_only_trackers_reach_the_trackers_servers(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    (policy,) = of_trackers(make_job(trackers=TRACKERS), defaults, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"]["rljob.dev/role"] == "tracker"
    https = {"ports": [{"protocol": "TCP", "port": 443}]}
    mlflow = {
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ml"}}}],
        "ports": [{"protocol": "TCP", "port": 5000}],
    }
    assert policy["spec"]["egress"] == [https, mlflow]
    made = desired(resolve_job(make_job(trackers=TRACKERS), defaults), Targets(1, 0, {}))
    (workers,) = [m for m in made if m["metadata"]["name"] == "chain-sum-workers"]
    assert https not in workers["spec"]["egress"]


async def test_a_tracker_keeps_its_deployment_when_others_go(run: Run, make_job: MakeJob) -> None:
    """Two processes of one tracker would store points twice."""
    await run.step(make_job(trackers=TRACKERS))
    before = {m["metadata"]["name"]: m["metadata"]["uid"] for m in run.server.of("Deployment")}
    await run.step(make_job(trackers=TRACKERS[2:]))
    after = {m["metadata"]["name"]: m["metadata"]["uid"] for m in run.server.of("Deployment")}
    assert OF_MLFLOW.startswith("chain-sum-tracker-mlflow-")
    assert after == {name: uid for name, uid in before.items() if name not in {OF_WANDB, OF_TENSORBOARD}}


@pytest.mark.parametrize("name", ["WandB", "my_pkg.trackers:Mine", "a" * 253, "A__"])
def test_names_and_labels_allow_what_stands_for_a_tracker(name: str) -> None:
    part = names.tracker_part(name)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", part)
    assert part != names.tracker_part(name.swapcase())


async def test_the_pods_reach_their_servers_until_they_have_ended(run: Run, make_job: MakeJob) -> None:
    await run.step(make_job(trackers=TRACKERS))
    run.server.pods_ready()
    await run.step(make_job())  # the Deployments are deleted, and their pods have their grace
    policy = Ref("NetworkPolicy", "default", "chain-sum-trackers")
    pods = [ref for ref in run.server.objects if ref.kind == "Pod" and "tracker" in ref.name]
    assert len(pods) == 3
    assert [m["metadata"]["name"] for m in run.server.of("Deployment") if "tracker" in str(m)] == []
    assert policy in run.server.objects
    for pod in pods:
        del run.server.objects[pod]
    await run.step(make_job())
    assert policy not in run.server.objects


def test_rules_for_jobs_see_trackers_and_what_their_options_name(make_job: MakeJob) -> None:
    spec = make_job(trackers=TRACKERS).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    found = {(str(m.kind), m.name) for m in mentions(spec) if m.path.startswith("spec.trackers")}
    assert found == {
        ("servers", "WandB"),
        ("servers", "TensorBoard"),
        ("servers", "MLflow"),
        ("servers", "http://mlflow.ml:5000"),
        ("secrets", "wandb"),
        ("images", "trackers:1"),
        ("persistentVolumeClaims", "logs"),
    }


def test_a_claim_that_is_nested_too_deep_is_named_as_one(make_job: MakeJob) -> None:
    options = {"a": [{"b": {"c": "pvc://others/x"}}]}
    spec = make_job(trackers=[{"name": "Mine", "options": options}]).spec.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    found = {(str(m.kind), m.name) for m in mentions(spec) if m.path == "spec.trackers.options"}
    assert found == {("servers", TOO_DEEP), ("persistentVolumeClaims", TOO_DEEP)}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("pvc://", "pvc:// names no PersistentVolumeClaim"),
        ("pvc://My_Claim/x", "pvc://My_Claim names no PersistentVolumeClaim"),
        ("pvc://a.b", "pvc://a.b names no PersistentVolumeClaim"),
        (f"pvc://{'a' * 58}/x", "names no PersistentVolumeClaim"),
        ("http://x:99999", "http://x:99999 has a port that no server has: write one from 1 to 65535"),
        ("http://x:0/y", "has a port that no server has"),
        ("http://a@b:99999@c:80", "has a port that no server has"),
        ("http://mlflow.-ml:80", "has no host that can be reached"),
        ("http://[fe80::1%eth0]:80", "has no host that can be reached"),
    ],
)
def test_what_no_pod_or_policy_could_have_is_refused(
    make_job: MakeJob, defaults: ClusterDefaults, value: str, words: str
) -> None:
    trackers = [{"name": "Trackio"}, {"name": "Mine", "options": {"a": [value]}}]
    with pytest.raises(SpecError) as refused:
        resolve_job(make_job(trackers=trackers), defaults)
    assert refused.value.path == "spec.trackers[1].options"
    assert words in refused.value.message


def test_locally_files_are_in_the_run_s_folder(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    here = replace(defaults, trackers_folder="/run/trackers")
    first, *_ = of_trackers(make_job(trackers=TRACKERS), here, "Deployment")
    (container,) = first["spec"]["template"]["spec"]["containers"]
    assert {"name": "RLJOB_TRACKER_FOLDER", "value": "/run/trackers/WandB"} in container["env"]


async def test_a_tracker_that_fails_is_a_condition_and_nothing_else(run: Run, make_job: MakeJob) -> None:
    job = make_job(trackers=TRACKERS)
    await run.step(make_job())
    assert "TrackerDegraded" not in run.conditions()
    await run.step(job)
    run.server.pods_ready()
    await run.step(job)
    assert run.ready() == ("True", "Training", "")
    assert run.conditions()["TrackerDegraded"] == "False"
    before = run.conditions()
    (owner,) = [m for m in run.server.of("Deployment") if m["metadata"]["name"] == OF_TENSORBOARD]
    for code, message, said in (
        (
            4,
            termination_message(
                Failure(Reason.RESOURCE_MISSING, "spec.trackers[1]: the tracker TensorBoard is full")
            ),
            "the tracker TensorBoard is full",
        ),
        (
            2,
            termination_message(
                Failure(Reason.INVALID_SPEC, "spec.trackers[1].options.directory: is needed")
            ),
            "options.directory: is needed",
        ),
        (1, "ModuleNotFoundError: No module named 'x'", "No module named 'x'"),
    ):
        owner["status"]["readyReplicas"] = 0
        run.server.pod(owner, 0, end={"exitCode": code, "message": message})
        await run.step(job)
        found = condition(run.server.stored, "TrackerDegraded")
        assert found is not None
        assert (found.status, said in found.message) == ("True", True), found
        assert found.message.startswith(f"{OF_TENSORBOARD}-0: ")
        # The job trains, nothing is waited for, and nothing has failed: not even by what ends a job from another role.
        assert run.conditions() == {**before, "TrackerDegraded": "True"}
        assert run.ready() == ("True", "Training", "")
    run.server.pods_ready()
    await run.step(job)
    assert run.conditions() == before
    assert ("Warning", "Unavailable") in run.server.events


async def test_a_tracker_that_has_not_opened_its_run_when_a_short_job_ends_is_named(
    run: Run, make_job: MakeJob
) -> None:
    job = make_job(trackers=TRACKERS)
    await run.step(job)
    run.server.pods_ready()
    (owner,) = [m for m in run.server.of("Deployment") if m["metadata"]["name"] == OF_WANDB]
    run.server.pod(owner, 0)
    await run.step(job)
    found = condition(run.server.stored, "TrackerDegraded")
    assert found is not None
    assert (found.status, found.reason) == ("False", "TrackerStarting")
    run.server.gang_ends(code=0)
    await run.step(job)
    assert run.conditions()["Succeeded"] == "True"
    assert degraded_trackers(run.server.stored) == f"{OF_WANDB}-0: has not opened its run yet"


async def test_trackers_that_follow_lack_nothing(run: Run, make_job: MakeJob) -> None:
    await run.step(make_job(trackers=TRACKERS))
    run.server.pods_ready()
    await run.step(make_job(trackers=TRACKERS))
    assert degraded_trackers(run.server.stored) == ""


async def test_what_a_tracker_lacks_at_the_end_stays_in_the_status(run: Run, make_job: MakeJob) -> None:
    job = make_job(trackers=TRACKERS)
    await run.step(job)
    run.server.pods_ready()
    (owner,) = [m for m in run.server.of("Deployment") if m["metadata"]["name"] == OF_WANDB]
    run.server.pod(owner, 0, end={"exitCode": 4, "message": "no key"})
    await run.step(job)
    run.server.gang_ends(code=0)
    await run.step(job)
    assert run.conditions()["Succeeded"] == "True"
    assert run.conditions()["TrackerDegraded"] == "True"
