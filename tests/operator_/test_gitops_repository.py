"""Jobs from a Git repository, applied as Argo CD and Flux do it: by server-side apply, with prune."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.console import Terminal, console
from e2e.harness.nats_server import EmbeddedServer
from gitops_repository import JobRepository, drift
from installation import CHECKOUT
from operators import Namespace, Object, Operator
from tests.waiting import until

from rljob_runtime.messaging.nats.store import NatsStore

pytestmark = pytest.mark.xdist_group("gitops")

POOL = "sums-rollout-cpu"
REWARD = "rljob.dev/role=reward"


@pytest.fixture
def operator(crds: Any, namespace: str, nats_server: EmbeddedServer, tmp_path: Path) -> Iterator[Operator]:
    log = tmp_path / "operator.log"
    storage = {"RLJOB_STORAGE": "pvc://rljob"}
    with Operator(crds.kubeconfig, nats_server.url, namespace, log, **storage) as running:
        yield running


@pytest.fixture
def repository(watched: Namespace, tmp_path: Path) -> JobRepository:
    return JobRepository(watched, tmp_path / "repository")


def trains(watched: Namespace, job: str = "sums") -> None:
    """Wait until the job is ready, its pods being reported to run."""

    def ready() -> bool:
        watched.pods_run()
        return watched.is_true(job, "Ready")

    until(ready)


def replicas(watched: Namespace) -> tuple[int, int]:
    """Of the pool, as its autoscaler set it, and of its engines' Deployment."""
    return tuple(watched.existing(kind, POOL)["spec"]["replicas"] for kind in ("rolloutpool", "deployment"))


def pods(watched: Namespace) -> dict[str, str]:
    """Role by uid, of the pods that are not about to end."""
    found = json.loads(watched("get", "pods", "--output=json"))["items"]
    return {
        pod["metadata"]["uid"]: pod["metadata"]["labels"]["rljob.dev/role"]
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
    }


def test_nothing_drifts_while_an_autoscaler_scales(
    operator: Operator, watched: Namespace, repository: JobRepository
) -> None:
    """Kubernetes' own autoscaler, which brings a pool within its bounds without a metric."""
    repository.apply("production")
    trains(watched)
    until(lambda: replicas(watched) == (2, 2))
    assert repository.drift("production") == ""
    repository.commit("production/autoscaler.yaml", "minReplicas: 2", "minReplicas: 4")
    repository.apply("production")
    until(lambda: replicas(watched) == (4, 4))
    trains(watched)
    before = watched.existing("rljob", "sums")["metadata"]
    for _ in range(3):
        repository.apply("production")
        assert repository.drift("production") == ""
    assert watched.existing("rljob", "sums")["metadata"]["generation"] == before["generation"]
    assert replicas(watched) == (4, 4)
    # A commit to the job, of the pool's own template, leaves the number to the autoscaler, too.
    repository.commit("production/kustomization.yaml", "memory: 2Gi", "memory: 3Gi")
    repository.apply("production")
    until(lambda: "3Gi" in json.dumps(watched.existing("deployment", POOL)))
    assert replicas(watched) == (4, 4)
    assert repository.drift("production") == ""


#: What Argo CD, Flux and kubectl write on the objects that they apply, to find them again.
TRACES: Object = {
    "labels": {
        "app.kubernetes.io/instance": "jobs-of-a-team",
        "argocd.argoproj.io/instance": "jobs-of-a-team",
        "kustomize.toolkit.fluxcd.io/name": "rljobs",
        "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
    },
    "annotations": {
        "argocd.argoproj.io/tracking-id": "jobs-of-a-team:rljob.dev/RLJob:team/sums",
        "argocd.argoproj.io/sync-wave": "2",
        "kustomize.toolkit.fluxcd.io/prune": "enabled",
    },
}


def made_for(watched: Namespace, job: str) -> list[Object]:
    """Every object of any kind that the namespace has for a job, Kubernetes' own among them."""
    kinds = watched("api-resources", "--namespaced", "--verbs=list,delete", "--output=name").split()
    kinds = [kind for kind in kinds if not kind.startswith("events")]
    listed = json.loads(watched("get", ",".join(kinds), "--output=json"))["items"]
    return [found for found in listed if (found["metadata"].get("labels") or {}).get("rljob.dev/job") == job]


async def test_a_prune_takes_what_has_left_the_repository_and_nothing_else(
    operator: Operator, watched: Namespace, repository: JobRepository, nats_server: EmbeddedServer
) -> None:
    await asyncio.to_thread(_apply_two_jobs, watched, repository)
    kept, gone = made_for(watched, "sums"), made_for(watched, "short")
    assert {"RolloutPool", "Deployment", "ReplicaSet", "Pod", "Job", "ConfigMap"} <= {o["kind"] for o in kept}
    marks = {(name, value) for mine in TRACES.values() for name, value in mine.items()}
    for found in (*kept, *gone):
        metadata = found["metadata"]
        on_it = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
        assert not marks & set(on_it.items()), found
        assert "applyset.kubernetes.io/part-of" not in on_it, found
        # Argo CD takes an object with an owner for nobody's, whatever labels it has.
        assert metadata["ownerReferences"], found
    uid = watched.existing("rljob", "short")["metadata"]["uid"]
    store = NatsStore(
        nats_server.url,
        subject=f"rljob.{watched.name}.short.{uid}",
        stream_prefix=f"RLJOB_{watched.name}_short_{uid}",
    )
    await store.open()
    try:
        (repository.folder / "staging/short.yaml").unlink()
        repository.commit("staging/kustomization.yaml", "../base, short.yaml, note.yaml", "../base")
        said = await asyncio.to_thread(repository.apply_and_prune, "staging")
        pruned = {line.removesuffix(" pruned") for line in said.splitlines() if line.endswith(" pruned")}
        assert pruned == {"rljob.rljob.dev/short", "configmap/note"}
        await asyncio.to_thread(until, lambda: watched.get("rljob", "short") is None)
        await asyncio.to_thread(until, lambda: not made_for(watched, "short"))
        streams = await store._connection.call("STREAM.NAMES", {"subject": f"rljob.{watched.name}.short.>"})
        assert not streams.get("streams")
    finally:
        await store.close()
    assert {o["metadata"]["uid"] for o in made_for(watched, "sums")} == {o["metadata"]["uid"] for o in kept}
    assert watched.is_true("sums", "Ready")
    assert watched.get("persistentvolumeclaim", "rljob")


def _apply_two_jobs(watched: Namespace, repository: JobRepository) -> None:
    """`sums` of the layout, and beside it the job `short` and a ConfigMap `note`, which nobody reads."""
    job = watched.kubectl("kustomize", str(repository.folder / "staging"))
    (text,) = [part for part in job.split("---\n") if "kind: RLJob" in part]
    (repository.folder / "staging/short.yaml").write_text(text.replace("name: sums\n", "name: short\n"))
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"a": "b"}}
    (repository.folder / "staging/note.yaml").write_text(json.dumps(note))
    repository.commit("staging/kustomization.yaml", "../base", "../base, short.yaml, note.yaml")
    traces = "".join(
        f"{field}:\n- pairs: {json.dumps(TRACES['labels'])}\n"
        if field == "labels"
        else f"{field}: {json.dumps(TRACES['annotations'])}\n"
        for field in ("labels", "commonAnnotations")
    )
    path = repository.folder / "staging/kustomization.yaml"
    path.write_text(path.read_text() + traces)
    repository.apply_and_prune("staging")
    marked = watched.existing("rljob", "sums")["metadata"]
    assert TRACES["labels"].items() <= marked["labels"].items()
    assert TRACES["annotations"].items() <= marked["annotations"].items()
    trains(watched)
    trains(watched, "short")


def test_a_running_job_changes_by_commits(
    operator: Operator, watched: Namespace, repository: JobRepository
) -> None:
    repository.apply("staging")
    trains(watched)
    before = pods(watched)
    # Restarts nothing.
    file = "staging/kustomization.yaml"
    repository.commit(file, "steps: 20\n", "steps: 20\n      pipeline: {maxStaleness: 3}\n")
    repository.apply("staging")
    until(lambda: '"maxStaleness":3' in watched.existing("configmap", "sums-config")["data"]["config.json"])
    assert pods(watched) == before
    # One role: the reward function is another file, so that its ConfigMap has another name.
    (mounted,) = _volumes(watched, "rewards")
    repository.commit(
        "base/rewards/near_miss.py", "return 0.5 / (1 + distance)", "return 0.4 / (1 + distance)"
    )
    repository.apply("staging")
    until(lambda: _volumes(watched, "rewards") not in ([], [mounted]))
    (mounted_now,) = _volumes(watched, "rewards")
    assert "0.4" in watched.existing("configmap", mounted_now)["data"]["near_miss.py"]
    trains(watched)
    until(lambda: "reward" not in {before.get(uid) for uid in pods(watched)})
    assert {role for uid, role in before.items() if uid not in pods(watched)} == {"reward"}
    # A rate: the trainer continues with another attempt, and engines stay.
    repository.commit("base/job.yaml", "learningRate: 3e-4", "learningRate: 1e-4")
    repository.apply("staging")
    watched.existing("job", "sums-trainer-2")
    trains(watched)
    engines = {uid for uid, role in before.items() if role == "rollout"}
    assert engines <= pods(watched).keys()
    # What cannot change is refused as a whole, when the request is tried as when it is merged.
    before = pods(watched)
    spec = watched.existing("rljob", "sums")["spec"]
    repository.commit("base/job.yaml", "groupSize: 8", "groupSize: 16")
    repository.commit(file, "steps: 20", "steps: 30")
    for options in ([], ["--dry-run=server"]):
        words = repository.refused("staging", *options)
        assert 'The RLJob "sums" is invalid: spec.data.groupSize: Forbidden: groupSize is immutable' in words
    assert watched.existing("rljob", "sums")["spec"] == spec
    assert pods(watched) == before
    assert watched.is_true("sums", "Ready")
    # And reverted.
    repository.commit("base/job.yaml", "groupSize: 16", "groupSize: 8")
    assert repository.refused("staging", "--dry-run=server") == ""
    repository.apply("staging")
    assert watched.existing("rljob", "sums")["spec"]["steps"] == 30


def _volumes(watched: Namespace, name: str) -> list[str]:
    """ConfigMaps that the reward workers mount under that name."""
    pod = watched.existing("deployment", "sums-reward")["spec"]["template"]["spec"]
    return [volume["configMap"]["name"] for volume in pod["volumes"] if volume["name"] == name]


def test_a_commit_suspends_and_the_next_one_resumes(
    operator: Operator, watched: Namespace, repository: JobRepository
) -> None:
    repository.apply("production")
    trains(watched)
    until(lambda: replicas(watched) == (2, 2))
    file = "production/kustomization.yaml"
    repository.commit(file, "steps: 400\n", "steps: 400\n      suspend: true\n")
    repository.apply("production")
    until(lambda: watched.is_true("sums", "Suspended"))
    until(lambda: not watched.children())
    assert repository.drift("production") == ""
    # Somebody resumes it by hand: the repository says so, and overrules it only if it is asked to.
    watched.patch("rljob", "sums", {"spec": {"suspend": False}})
    assert 'conflict with "kubectl-patch"' in repository.drift("production")
    assert 'conflict with "kubectl-patch"' in repository.refused("production")
    repository.apply("production", "--force-conflicts")
    until(lambda: watched.is_true("sums", "Suspended"))
    # Without the line the field has its default.
    repository.commit(file, "      suspend: true\n", "")
    repository.apply("production")
    assert watched.existing("rljob", "sums")["spec"]["suspend"] is False
    trains(watched)
    until(lambda: replicas(watched) == (2, 2))
    assert repository.drift("production") == ""


def test_a_job_waits_for_what_a_later_wave_brings(
    operator: Operator, watched: Namespace, repository: JobRepository
) -> None:
    """A Secret; what the kubelet says of pods until it is there is written by the test."""
    secret = {"name": "key", "valueFrom": {"secretKeyRef": {"name": "score-key", "key": "token"}}}
    env = "env: [{name: PYTHONPATH, value: /rewards}"
    repository.commit("base/job.yaml", env, f"{env}, {json.dumps(secret)}")
    repository.apply("staging")
    roles = {"coordinator", "reward", "rollout", "trainer"}
    until(lambda: set(pods(watched).values()) == roles)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "score-key" not found'}
    container = {
        "name": "scorer", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": {"waiting": waiting},
    }  # fmt: skip

    def waits() -> bool:
        # Said of the pods that there are now: one may have been replaced meanwhile.
        watched.pods_run(selector=REWARD.replace("=", "!="))
        watched.kubelets_say("Pending", ready=False, selector=REWARD, containerStatuses=[container])
        return (watched.condition("sums", "Ready") or {}).get("reason") == "SecretNotFound"

    until(waits, shown=lambda: watched.condition("sums", "Ready"))
    assert waiting["message"] in watched.condition("sums", "Ready")["message"]
    assert not watched.is_true("sums", "Stalled")
    assert repository.drift("staging") == ""
    before = pods(watched)
    watched("create", "secret", "generic", "score-key", "--from-literal=token=t")
    watched.kubelets_say("Running", ready=True, selector=REWARD, containerStatuses=None)
    trains(watched)
    assert pods(watched) == before


def test_the_page_shows_what_happens(
    operator: Operator, watched: Namespace, repository: JobRepository
) -> None:
    page = (CHECKOUT / "docs/gitops.md").read_text()
    terminal = Terminal(watched.kubectl, repository.folder)
    examples = console(page)
    assert len(examples) > 5

    def output(command: str) -> str:
        try:
            return terminal.type(command)
        except AssertionError as error:
            return str(error)

    for command, shown in examples:
        if "is invalid" in shown:
            assert shown.strip() in output(command)
        elif command.startswith("kubectl diff "):
            assert drift(lambda command=command: output(command)) == shown
        else:
            assert terminal.type(command) == shown
    trains(watched)


def test_every_reference_to_a_generated_name_is_written(
    repository: JobRepository, watched: Namespace
) -> None:
    """kustomize knows RLJobs' references by base/rljob-references.yaml alone."""
    config, secret = {"name": "made"}, {"name": "hidden"}
    container = {
        "name": "worker",
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {**config, "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {**secret, "key": "k"}}},
        ],
        "envFrom": [{"configMapRef": config}, {"secretRef": secret}],
    }
    template = {
        "spec": {
            "containers": [container],
            "initContainers": [container],
            "imagePullSecrets": [secret],
            "volumes": [
                {"name": "c", "configMap": config},
                {"name": "s", "secret": {"secretName": "hidden"}},
                {"name": "p", "projected": {"sources": [{"configMap": config}, {"secret": secret}]}},
            ],
        }
    }
    job = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "all"},
        "spec": {
            "imagePullSecrets": ["hidden"],
            "model": {"credentialsSecret": "hidden"},
            "nats": {"credentialsSecret": "hidden"},
            "trackers": [{"credentialsSecret": "hidden"}],
            "rollout": {"pools": [{"template": template}]},
            **{role: {"template": template} for role in ("coordinator", "reward", "trainer")},
        },
    }
    folder = repository.folder / "base"
    (folder / "job.yaml").write_text(json.dumps(job))
    kustomization = {
        "resources": ["job.yaml"],
        "configMapGenerator": [{"name": "made", "literals": ["k=v"]}],
        "secretGenerator": [{"name": "hidden", "literals": ["k=v"]}],
        "configurations": ["rljob-references.yaml"],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    text = watched.kubectl("kustomize", str(folder))
    written = re.findall(r"\b(made|hidden)\b(-\w+)?", text)
    assert len(written) == 4 * 13 + 4 + 2
    assert all(suffix for _, suffix in written), text
