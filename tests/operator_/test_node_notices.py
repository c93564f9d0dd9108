"""A node that is about to be taken away is left by its engines, all at once, before it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dictionary_server import NOW, DictionaryServer
from e2e.harness.control_plane import ControlPlane
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, manifest
from own_control_plane import own_control_plane
from small_job import MakeJob
from tests.waiting import until, within

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.api import KubeApi, Page
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.node_watch import NodeWatch
from rljob_operator.cluster.node_notices import NodeNotice, noticed
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.reconcile.reconcile import Reconciler

pytestmark = pytest.mark.xdist_group("node notices")

TAINT = "aws-node-termination-handler/spot-itn"
POOLS: list[dict[str, Any]] = [{"name": "a", "replicas": 3}, {"name": "b", "replicas": 1}]


# ------------------------------------------------------------------------------- what is decided


class Running:
    """A job whose pods all run on one node, `west`, or where a test puts them."""

    def __init__(self, server: DictionaryServer, defaults: ClusterDefaults, job: RLJob) -> None:
        self.server, self.job = server, job
        self.notices: Mapping[str, NodeNotice] = {}
        self.reconciler = Reconciler(server, defaults, clock=lambda: server.now, notices=lambda: self.notices)

    async def settle(self) -> None:
        for _ in range(12):
            if not (await self.reconciler.reconcile(self.job)).actions:
                return
        pytest.fail("it does not settle")

    def put(self, pod: str, node: str = "west", *, seconds: float = -60.0) -> None:
        """Let the scheduler have put a pod on a node, so many seconds after the notice."""
        found = self.server.objects[Ref("Pod", "default", pod)]
        found["metadata"].setdefault("uid", f"uid of {pod}")
        found["spec"] = {"nodeName": node}
        scheduled = (NOW + timedelta(seconds=seconds)).isoformat()
        found["status"]["conditions"].append(
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}
        )

    def notice(self, **more: Any) -> None:
        self.notices = {"west": NodeNotice(TAINT, NOW, **more)}
        self.server.log.clear()

    @property
    def deleted(self) -> list[str]:
        return sorted(line.split()[-1] for line in self.server.log if line.startswith("delete Pod"))


@pytest.fixture
async def running(server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob) -> Running:
    found = Running(server, defaults, make_job(rollout__pools=POOLS))
    await found.settle()
    server.pods_ready()
    for pod in server.of("Pod"):
        found.put(pod["metadata"]["name"])
    await found.settle()
    return found


async def test_all_engines_leave_a_node_with_a_notice_and_no_other_role_does(running: Running) -> None:
    running.put("chain-sum-rollout-a-1", "east")
    running.notice()
    await running.settle()
    assert running.deleted == ["chain-sum-rollout-a-0", "chain-sum-rollout-a-2", "chain-sum-rollout-b-0"]
    assert [reason for _, reason in running.server.events].count("NodeLeaves") == 1


async def test_an_engine_that_came_after_the_notice_tolerates_it_and_stays(running: Running) -> None:
    running.put("chain-sum-rollout-a-1", seconds=1.0)
    running.notice()
    await running.settle()
    assert "chain-sum-rollout-a-1" not in running.deleted
    assert len(running.deleted) == 3


@pytest.mark.parametrize(
    ("toleration", "stays"),
    [
        ({"operator": "Exists"}, True),
        ({"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": TAINT, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": TAINT, "value": "soon"}, True),
        ({"key": TAINT, "value": "later"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
async def test_an_operator_that_starts_after_the_notice_leaves_alone_what_tolerates_it(
    toleration: dict[str, str], stays: bool, running: Running
) -> None:
    """It cannot know whether an engine was put there in spite of the notice."""
    found = running.server.objects[Ref("Pod", "default", "chain-sum-rollout-a-1")]
    found["spec"]["tolerations"] = [toleration]
    running.notice(is_older=True, value="soon", effect="NoSchedule")
    await running.settle()
    assert ("chain-sum-rollout-a-1" not in running.deleted) is stays
    assert len(running.deleted) == 4 - stays


async def test_engines_of_a_job_that_is_stalled_leave_too(running: Running, make_job: MakeJob) -> None:
    broken = {"spec": {"containers": [{"name": "rollout", "volumeMounts": 7}]}}
    running.job = make_job(rollout__pools=[{**POOLS[0], "template": broken}, POOLS[1]])
    running.notice()
    await running.settle()
    assert any(c.type == "Stalled" and c.status == "True" for c in running.server.stored.conditions)
    assert len(running.deleted) == 4


async def test_one_that_goes_already_is_not_asked_again(running: Running) -> None:
    pod = running.server.objects[Ref("Pod", "default", "chain-sum-rollout-b-0")]
    pod["metadata"]["deletionTimestamp"] = NOW.isoformat()
    running.notice()
    await running.settle()
    assert "chain-sum-rollout-b-0" not in running.deleted


async def test_engines_of_a_job_that_ends_go_in_their_turn(running: Running, make_job: MakeJob) -> None:
    running.job = make_job(rollout__pools=POOLS, suspend=True)
    running.notice()
    await running.settle()
    assert running.deleted == []


@pytest.mark.parametrize(
    ("taints", "found"),
    [
        (None, None),
        ([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}], None),
        ([{"key": "other", "effect": "NoExecute"}, {"key": TAINT, "effect": "NoSchedule"}], TAINT),
    ],
)
def test_a_cordon_is_no_notice(taints: Any, found: str | None) -> None:
    assert (noticed({"spec": {"taints": taints}}, [TAINT]) or {}).get("key") == found
    assert noticed({}, [TAINT]) is None


# ------------------------------------------------------------------------------- what is watched


def node(name: str, *taints: str, version: str = "1") -> Manifest:
    metadata = {"name": name, "resourceVersion": version}
    return {"metadata": metadata, "spec": {"taints": [{"key": taint} for taint in taints]}}


class Nodes(KubeApi):
    """Lists and watches of nodes, as a test says: events, or an error; after the last of them, nothing happens."""

    def __init__(self, lists: list[list[Manifest] | ApiError], watches: list[list[Any]]) -> None:
        self.lists, self.watches = lists, watches

    async def pages(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Page]:
        assert (kind, namespace, selector) == ("Node", "", "")
        found = self.lists.pop(0)
        if isinstance(found, ApiError):
            raise found
        yield Page(found, "1")

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        for said in self.watches.pop(0) if self.watches else ():
            if isinstance(said, ApiError):
                raise said
            yield said
        if not self.watches:
            await asyncio.Event().wait()


async def watched_until(watch: NodeWatch, names: set[str], said: list[str]) -> None:
    """Watch until the nodes of these names have notices, and something was said of them."""
    watch.on_notice = said.append
    running = asyncio.create_task(watch.run())
    async with within():
        while not (watch.notices.keys() == names and said):
            assert not running.done()
            await asyncio.sleep(0.01)
    running.cancel()


async def test_nodes_are_watched_for_the_taint() -> None:
    events = [
        ("MODIFIED", node("east", TAINT, "another")),
        ("MODIFIED", node("east", TAINT)),
        ("MODIFIED", node("stays", "another")),
        ("ADDED", node("new", TAINT)),
        ("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        ("MODIFIED", node("west")),
        ("DELETED", node("new", TAINT)),
    ]
    watch = NodeWatch(Nodes([[node("west", TAINT), node("east")]], [events]), [TAINT])
    said: list[str] = []
    await watched_until(watch, {"east"}, said)
    assert said == ["west", "east", "new"], "each once"
    assert watch.notices["east"].taint == TAINT
    assert not watch.notices["east"].is_older


async def test_a_list_that_is_read_again_tells_which_nodes_have_gone() -> None:
    lists = [[node("west", TAINT), node("east", TAINT)], [node("east", TAINT), node("new", TAINT)]]
    watch = NodeWatch(Nodes([*lists], [[ApiError(410, "Expired", "too old")]]), [TAINT])
    said: list[str] = []
    await watched_until(watch, {"east", "new"}, said)
    assert said == ["west", "east", "new"]
    assert watch.notices["new"].is_older, "it may have come while nobody watched"


async def test_without_the_right_to_list_nodes_the_operator_works_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = ApiError(403, "Forbidden", "nodes is forbidden")
    watch = NodeWatch(Nodes([refused, refused, [node("west", TAINT)]], []), [TAINT])
    await watched_until(watch, {"west"}, [])
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert ["nodes is forbidden" in record.getMessage() for record in warnings] == [True], "once"


async def test_without_taints_to_look_for_nodes_are_not_read() -> None:
    await NodeWatch(Nodes([], []), []).run()


# ------------------------------------------------------------------------------- a real API server


# No kubelet says that the nodes live, and nobody is to find out.
_PATIENT = ["--node-startup-grace-period=1h", "--node-monitor-grace-period=1h"]
control_plane, watched = own_control_plane("notices", flags={"kube-controller-manager": _PATIENT})


@pytest.fixture
def operator(
    control_plane: ControlPlane, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> Iterator[Operator]:
    log = tmp_path / "operator.log"
    taints = {"RLJOB_NOTICE_TAINTS": f"other/taint,{TAINT}"}
    with Operator(control_plane.kubeconfig, nats_server.url, watched.name, log, **taints) as running:
        yield running


def bind(watched: Namespace, pod: str, node: str) -> None:
    """What the scheduler does; there is no kubelet."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    path = f"/api/v1/namespaces/{watched.name}/pods/{pod}/binding"
    watched.kubectl("create", f"--raw={path}", "--filename=-", input_text=json.dumps(binding))


def test_a_taint_is_seen_and_its_engines_go(operator: Operator, watched: Namespace) -> None:
    kubectl = watched.kubectl
    for name in ("west", "east"):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        kubectl.apply({**node, "spec": {"unschedulable": True}})
    watched.apply(manifest(rollout={"pools": [{"name": "cpu", "replicas": 3}]}))

    def pods(role: str) -> list[Object]:
        selector = f"--selector=rljob.dev/role={role}"
        found: list[Object] = json.loads(watched("get", "pods", selector, "--output=json"))["items"]
        return found

    until(lambda: len(pods("rollout")) == 3 and pods("coordinator"))
    (first, second, third), (coordinator,) = pods("rollout"), pods("coordinator")
    for pod, node in ((first, "west"), (second, "west"), (third, "east"), (coordinator, "west")):
        bind(watched, pod["metadata"]["name"], node)
    kubectl("taint", "nodes", "west", "east", "unrelated=now:NoSchedule")
    kubectl("taint", "nodes", "west", f"{TAINT}=now:NoSchedule")

    def going() -> set[str]:
        everyone = [*pods("rollout"), *pods("coordinator")]
        return {pod["metadata"]["name"] for pod in everyone if "deletionTimestamp" in pod["metadata"]}

    def names(*found: Object) -> set[str]:
        return {pod["metadata"]["name"] for pod in found}

    leaving = names(first, second)
    until(lambda: going() == leaving)
    (said,) = until(lambda: watched.events("sums", "NodeLeaves"))
    assert said.startswith(f"node west is about to be taken away (taint {TAINT}): ")
    assert all(name in said for name in leaving)
    # It was listed before it was watched, too: the next operator knows it from its start.
    until(lambda: len(pods("rollout")) == 5)
    operator.kill()
    kubectl("taint", "nodes", "east", f"{TAINT}=now:NoSchedule")
    operator.start()
    until(lambda: going() == leaving | names(third))
