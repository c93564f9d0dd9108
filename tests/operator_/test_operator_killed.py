"""The operator is killed in the middle of every step of a job's life, between any two of its own writes.

It is killed after its first write, then, started again, after two more, then after three, until it comes to the end.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from api_proxy import ApiProxy
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, children_of, manifest
from tests.night import some
from tests.waiting import until

pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("operator-killed")]


class TrainerJobs:
    """Every Job there ever was in a namespace, from a watch of its own."""

    def __init__(self, watched: Namespace, file: Path) -> None:
        self._namespace = watched
        self._file = file
        path = f"/apis/batch/v1/namespaces/{watched.name}/jobs?watch=1"
        kubectl = watched.kubectl
        command = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", "get", f"--raw={path}"]
        with file.open("wb") as output:
            self._watch = subprocess.Popen(command, stdout=output)

    def close(self) -> None:
        self._watch.terminate()
        self._watch.wait()

    def check(self) -> list[str]:
        """Names in the order in which they came; never two at a time, no name twice."""
        until(lambda: self._read()[1] == set(self._namespace.names("job")))  # it comes after what it tells of
        return self._read()[0]

    def _read(self) -> tuple[list[str], set[str]]:
        """All names, and those that exist now."""
        present: set[str] = set()
        names: list[str] = []
        for line in self._file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):  # it is being written
                break
            event = json.loads(line)
            name = event["object"]["metadata"]["name"]
            if event["type"] == "ADDED":
                assert not present, f"{name} beside {present}"
                assert name not in names, f"{name} twice"
                present.add(name)
                names.append(name)
            elif event["type"] == "DELETED":
                present.remove(name)
        return names, present


@dataclass(frozen=True)
class World:
    watched: Namespace
    operator: Operator
    proxy: ApiProxy
    jobs: TrainerJobs

    def patch(self, **spec: Any) -> None:
        self.watched.patch("rljob", "sums", {"spec": spec})

    def job(self) -> Object:
        found = self.watched.get("rljob", "sums")
        assert found is not None
        return found

    def status(self, field: str) -> Any:
        return self.job().get("status", {}).get(field, 0)

    def runs(self, *, first: int = 1) -> bool:
        """All children are there, with the Job of the newest attempt, which is not before `first`."""
        attempt = self.status("trainerAttempt")
        return attempt >= first and self.watched.children() == children_of("sums", attempt=attempt)

    def trainer_ends(self, code: int) -> None:
        """What a kubelet says of a trainer's pod that ended."""
        name = until(
            lambda: next((n for n in self.watched.names("pod") if n.startswith("sums-trainer-")), None)
        )
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": "boom"}
        container = {
            "name": "trainer",
            "state": {"terminated": terminated},
            "ready": False,
            "restartCount": 0,
            "image": "x",
            "imageID": "x",
        }
        status = {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [container]}
        self.watched.patch("pod", name, {"status": status}, "--subresource=status")


@pytest.fixture
def world(
    crds: SharedControlPlane, watched: Namespace, nats_server: EmbeddedServer, tmp_path: Path
) -> Iterator[World]:
    jobs = TrainerJobs(watched, tmp_path / "jobs.watch")
    with (
        ApiProxy(crds.kubeconfig, tmp_path) as proxy,
        Operator(proxy.kubeconfig, nats_server.url, watched.name, tmp_path / "operator.log") as operator,
    ):
        yield World(watched, operator, proxy, jobs)
        proxy.allow(None)
    jobs.close()


def replicas(world: World) -> tuple[int, int, int]:
    """Of the pool, its Deployment and its disruption budget."""
    name = "sums-rollout-cpu"
    pool, deployment, budget = (
        world.watched.existing(kind, name)["spec"]
        for kind in ("rolloutpool", "deployment", "poddisruptionbudget")
    )
    return pool["replicas"], deployment["replicas"], budget["minAvailable"]


# ---------------------------------------------------------------------------------------------- steps


@dataclass(frozen=True)
class Step:
    """A step of a job's life: what is before it, what begins it, and whether it has come to its right end."""

    before: Callable[[World], Any]
    begin: Callable[[World], None]
    ended: Callable[[World], bool]


def nothing(world: World) -> bool:
    return True


def running(world: World) -> None:
    world.watched.apply(manifest())
    until(world.runs)
    until(lambda: world.status("observedGeneration") == 1)


def suspended(world: World) -> None:
    running(world)
    world.patch(suspend=True)
    until(lambda: is_suspended(world))


def pool_of(count: int) -> Object:
    return {"pools": [{"name": "cpu", "replicas": count}]}


def created(world: World) -> bool:
    return world.runs() and world.status("failures") == 0


def rolled(world: World) -> bool:
    """A new trainer and coordinator, and nobody else."""
    if not world.runs(first=2) or world.status("failures"):
        return False
    config = world.watched.existing("configmap", "sums-config")["data"]["config.json"]
    return json.loads(config)["spec"]["algorithm"]["learningRate"] == 0.5 and [
        world.watched.existing("deployment", f"sums-{role}")["metadata"]["generation"] > 1
        for role in ("coordinator", "reward", "rollout-cpu")
    ] == [True, False, False]


def is_suspended(world: World) -> bool:
    return not world.watched.children() and world.watched.is_true("sums", "Suspended")


def over(world: World) -> bool:
    return not world.watched.children() and world.watched.is_true("sums", "Succeeded")


STEPS = {
    "creating": Step(nothing, lambda w: w.watched.apply(manifest()), created),
    "retrying": Step(
        running, lambda w: w.trainer_ends(1), lambda w: w.runs(first=2) and w.status("failures") == 1
    ),
    "deleting": Step(
        running,
        lambda w: w.watched("delete", "rljob", "sums", "--wait=false"),
        lambda w: not w.watched.children() and w.watched.get("rljob", "sums") is None,
    ),
    "scaling up": Step(
        running, lambda w: w.patch(rollout=pool_of(5)), lambda w: w.runs() and replicas(w) == (5, 5, 4)
    ),
    "scaling down": Step(
        running, lambda w: w.patch(rollout=pool_of(1)), lambda w: w.runs() and replicas(w) == (1, 1, 0)
    ),
    "suspending": Step(running, lambda w: w.patch(suspend=True), is_suspended),
    "resuming": Step(
        suspended, lambda w: w.patch(suspend=False), lambda w: w.runs(first=2) and w.status("failures") == 0
    ),
    "completing": Step(running, lambda w: w.trainer_ends(0), over),
    "changing": Step(running, lambda w: w.patch(algorithm={"learningRate": 0.5}), rolled),
}


def test_a_trainer_s_job_is_not_made_twice_when_the_answer_is_lost_and_the_watch_is_late(
    world: World,
) -> None:
    world.proxy.hide("jobs")
    world.proxy.lose(lambda method, path: method == "PATCH" and "/jobs/sums-trainer-" in path)
    world.watched.apply(manifest())
    until(world.proxy.held.is_set)
    until(lambda: created(world))
    assert world.jobs.check() == ["sums-trainer-1"]
    world.proxy.hide("")
    world.patch(algorithm={"learningRate": 0.5})
    until(lambda: rolled(world))
    assert len(world.jobs.check()) == 2


@pytest.mark.parametrize("name", some(list(STEPS), 3))
def test_an_operator_that_is_killed_after_any_write_continues(world: World, name: str) -> None:
    step = STEPS[name]
    step.before(world)
    world.proxy.allow(1)
    step.begin(world)
    for writes in itertools.count(2):
        until(lambda: world.proxy.cut.is_set() or step.ended(world))
        if not world.proxy.cut.is_set():
            break
        world.operator.kill()
        world.proxy.allow(writes)
        world.operator.start()
    world.proxy.allow(None)
    until(lambda: step.ended(world))
    attempts = world.jobs.check()
    if name in {"scaling up", "scaling down", "suspending", "completing", "deleting"}:
        assert attempts == ["sums-trainer-1"]
