"""`kubectl rljob` on a real API server: what it changes, and what it leaves as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from installation import kubeconfig_of
from operators import Namespace, manifest
from tests.waiting import until, until_async
from typer.testing import CliRunner

from rljob_cli.kubectl.audit_in_cluster import audit_in_cluster
from rljob_cli.kubectl.cluster import ClusterChoice, UserCluster
from rljob_cli.kubectl.commands import app
from rljob_cli.kubectl.job_patch import patch_job
from rljob_cli.kubectl.mirror import mirrored
from rljob_cli.kubectl.refusals import ClusterRefused
from rljob_cli.kubectl.stream_commands import Notes
from rljob_cli.kubectl.viewer import JobViewer


def plugin(watched: Namespace, kubeconfig: Path, *arguments: str) -> tuple[int, str]:
    where = (f"--namespace={watched.name}", f"--kubeconfig={kubeconfig}")
    result = CliRunner().invoke(app, [*arguments, *where])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_fields_are_changed_and_nothing_else_is_written(watched: Namespace, kubeconfig: Path) -> None:
    watched.apply(manifest())
    before = watched.existing("rljob", "sums")["spec"]
    changes = ("--set", "steps=7", "--set", "rollout.pools.cpu.replicas=1")
    code, said = plugin(watched, kubeconfig, "patch", "sums", *changes)
    assert code == 0
    assert set(said.splitlines()) == {"spec.steps: 3 → 7", "spec.rollout.pools.cpu.replicas: 2 → 1"}
    pools = [{**before["rollout"]["pools"][0], "replicas": 1}]
    after = {**before, "steps": 7, "rollout": {**before["rollout"], "pools": pools}}
    assert watched.existing("rljob", "sums")["spec"] == after
    assert plugin(watched, kubeconfig, "patch", "sums", "--set", "steps=7") == (
        0,
        "nothing changes: the job has these values already\n",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepz=7", "did you mean"),
        ("steps=0", "spec.steps"),
        ("metadata.labels.x=y", "only fields of spec are changed here"),
        ("model.uri=pvc://other/model", "uri is immutable"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    watched: Namespace, kubeconfig: Path, text: str, words: str
) -> None:
    watched.apply(manifest())
    before = watched.existing("rljob", "sums")["metadata"]["generation"]
    code, said = plugin(watched, kubeconfig, "patch", "sums", "--set", text)
    assert code == 2
    assert words in said
    assert watched.existing("rljob", "sums")["metadata"]["generation"] == before


def test_a_job_is_suspended_and_resumed_until_it_has_ended(watched: Namespace, kubeconfig: Path) -> None:
    watched.apply(manifest())
    for command, word, suspended in (("suspend", "suspended", True), ("resume", "resumed", False)):
        assert plugin(watched, kubeconfig, command, "sums") == (0, f"sums is {word}\n")
        assert watched.existing("rljob", "sums")["spec"]["suspend"] is suspended
        assert "already" in plugin(watched, kubeconfig, command, "sums")[1]
    end = {
        "type": "Succeeded",
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    watched.patch("rljob", "sums", {"status": {"conditions": [end]}}, "--subresource=status")
    for arguments in (("suspend", "sums"), ("patch", "sums", "--set", "steps=9")):
        code, said = plugin(watched, kubeconfig, *arguments)
        assert code == 2
        assert "has ended (Succeeded)" in said


class Meanwhile(UserCluster):
    """A cluster in which something is written between the reading of a job and its change."""

    def __init__(self, choice: ClusterChoice, watched: Namespace, *changes: dict[str, Any]) -> None:
        super().__init__(choice)
        self._watched = watched
        self._changes = list(changes)

    def patch_job(self, name: str, changes: Any) -> Any:
        if self._changes:
            found = self._changes.pop()
            self._watched.patch(
                "rljob", name, found, *(["--subresource=status"] if "status" in found else [])
            )
        return super().patch_job(name, changes)


def test_a_status_that_is_written_meanwhile_is_no_conflict_and_a_spec_is(
    watched: Namespace, kubeconfig: Path
) -> None:
    watched.apply(manifest())
    choice = ClusterChoice(namespace=watched.name, kubeconfig=str(kubeconfig))
    cluster = Meanwhile(choice, watched, {"status": {"step": 2}}, {"status": {"step": 1}})
    assert patch_job(cluster, "sums", ["steps=7"])
    assert watched.existing("rljob", "sums")["spec"]["steps"] == 7
    with pytest.raises(Exception, match="changed by somebody else"):
        patch_job(Meanwhile(choice, watched, {"spec": {"steps": 8}}), "sums", ["steps=9"])
    assert watched.existing("rljob", "sums")["spec"]["steps"] == 8


def own_config_map(watched: Namespace, part: str, data: dict[str, str]) -> None:
    """A ConfigMap of the job, as the operator would make it."""
    job = watched.existing("rljob", "sums")
    owner = {"apiVersion": job["apiVersion"], "kind": "RLJob", "name": "sums", "uid": job["metadata"]["uid"]}
    metadata = {"name": f"sums-{part}", "ownerReferences": [{**owner, "controller": True}]}
    watched.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


class Unanswered(UserCluster):
    """A cluster that creates a pod, and whose answer to that is lost."""

    error: BaseException = ClusterRefused("the API server does not answer")

    def create_pod(self, manifest: Any) -> None:
        super().create_pod(manifest)
        assert self.pod(manifest["metadata"]["name"]) is not None
        raise self.error


AUDITING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sums-audit"},
    "spec": {"containers": [{"name": "audit", "image": "own", "command": ["rljob"]}]},
}


@pytest.mark.parametrize("error", [ClusterRefused("no answer"), KeyboardInterrupt()])
def test_a_pod_whose_creation_was_not_answered_is_deleted(
    watched: Namespace, kubeconfig: Path, error: BaseException
) -> None:
    watched.apply(manifest())
    own_config_map(watched, "audit", {"pod.yaml": json.dumps(AUDITING)})
    watched.existing("serviceaccount", "default")  # without it no pod is created
    cluster = Unanswered(ClusterChoice(namespace=watched.name, kubeconfig=str(kubeconfig)))
    cluster.error = error
    with pytest.raises(type(error)):
        audit_in_cluster(cluster, "sums", as_json=False)
    assert watched.get("pod", "sums-audit") is None


def test_the_pod_of_another_audit_is_left_alone(watched: Namespace, kubeconfig: Path) -> None:
    watched.apply(manifest())
    own_config_map(watched, "audit", {"pod.yaml": json.dumps(AUDITING)})
    watched.existing("serviceaccount", "default")  # without it no pod is created
    watched.apply(AUDITING)
    code, said = plugin(watched, kubeconfig, "audit", "sums", "--in-cluster")
    assert code == 2
    assert f"kubectl -n {watched.name} delete pod sums-audit" in said
    assert watched.get("pod", "sums-audit") is not None


def worker_config(uid: str) -> str:
    places = {name: f"/nowhere/{name}" for name in ("weights_uri", "checkpoint_uri", "trainer_log_uri")}
    return json.dumps({"namespace": "n", "job": "sums", "uid": uid, "spec": manifest()["spec"], **places})


class KeptNotes(Notes):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


async def test_a_job_that_cannot_be_read_is_not_taken_for_one_that_was_deleted(
    watched: Namespace, kubeconfig: Path, tmp_path: Path
) -> None:
    watched.apply(manifest())
    own_config_map(watched, "viewer", {"server": "nats://127.0.0.1:9"})
    uid = watched.existing("rljob", "sums")["metadata"]["uid"]
    own_config_map(watched, "audit", {"config.json": worker_config(uid)})
    notes = KeptNotes()
    viewer = JobViewer(UserCluster(ClusterChoice(namespace=watched.name, kubeconfig=str(kubeconfig))), "sums")
    async with mirrored(viewer, tmp_path, lambda _: notes) as mirror:
        watched("delete", "configmap", "sums-audit")
        watched.patch("rljob", "sums", {"spec": {"steps": 9}})
        await until_async(lambda: any("has no ConfigMap sums-audit" in text for text in notes.said))
        assert not mirror.ended
        watched("delete", "rljob", "sums", "--wait=false")
        await until_async(lambda: mirror.ended)
        assert any("there is no such RLJob" in text for text in notes.said)


@pytest.mark.parametrize(("host", "direct"), [("localhost", True), ("nats.nowhere", False)])
def test_a_server_whose_host_has_the_form_of_a_service_is_reached_directly_if_this_machine_knows_it(
    watched: Namespace, kubeconfig: Path, tmp_path: Path, host: str, *, direct: bool
) -> None:
    watched.apply(manifest())
    own_config_map(watched, "viewer", {"server": f"nats://{host}:4222"})
    watched("create", "serviceaccount", "looker")
    seen = ("--verb=get", "--resource=configmaps", "--resource=rljobs.rljob.dev")
    watched("create", "role", "looker", *seen)
    watched("create", "rolebinding", "looker", "--role=looker", f"--serviceaccount={watched.name}:looker")
    account = kubeconfig_of(watched.kubectl, "looker", watched.name, tmp_path / "looker.kubeconfig")
    user = f"--as=system:serviceaccount:{watched.name}:looker"
    until(lambda: watched.kubectl.succeeds("auth", "can-i", "get", "rljobs.rljob.dev", user))
    viewer = JobViewer(UserCluster(ClusterChoice(kubeconfig=str(account))), "sums")
    if direct:
        with viewer.reached() as url:
            assert url == f"nats://{host}:4222"
    else:
        with pytest.raises(ClusterRefused, match="you may not get the Service nats"), viewer.reached():
            pytest.fail("it is not reached")


@pytest.mark.parametrize(
    ("part", "command"), [("viewer", ("top",)), ("audit", ("audit", "--in-cluster")), ("audit", ("samples",))]
)
def test_a_config_map_of_somebody_else_is_not_read(
    watched: Namespace, kubeconfig: Path, part: str, command: tuple[str, ...]
) -> None:
    watched.apply(manifest())
    metadata = {"name": f"sums-{part}"}
    data = {"server": "nats://127.0.0.1:1", "pod.json": '{"spec": {"containers": [{}]}}', "config.json": "{}"}
    watched.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    code, said = plugin(watched, kubeconfig, *command, "sums")
    assert code == 2
    assert f"the ConfigMap sums-{part} is not this RLJob's" in said


def test_a_job_that_does_not_exist_is_said_beside_those_that_do(watched: Namespace, kubeconfig: Path) -> None:
    watched.apply(manifest())
    code, said = plugin(watched, kubeconfig, "describe", "sum")
    assert code == 2
    assert f"no such RLJob in namespace {watched.name} (RLJobs there: sums)" in said
    code, said = plugin(watched, kubeconfig, "top", "sums")
    assert code == 2
    assert "has no ConfigMap sums-viewer" in said
    assert "not seen by an operator yet" in plugin(watched, kubeconfig, "describe", "sums")[1]
    assert "has no pods" in plugin(watched, kubeconfig, "logs", "sums")[1]
