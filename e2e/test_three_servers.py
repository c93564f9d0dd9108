"""A job on three NATS servers, each on its own node: two of the nodes are lost in turn, one of them with its disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import FLAGS, AnyCluster
from e2e.harness.cluster import Cluster
from e2e.harness.node import parse_nodes
from e2e.installation import NATS_CLUSTER, SYSTEM, install, job_namespace, shared_folder
from e2e.jobs import Job, emulated_example

# A cluster of its own takes minutes that a commit has not.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

_STREAMS = """
exec 3<>/dev/tcp/127.0.0.1/8222
printf 'GET /jsz?accounts=true&streams=true&config=true HTTP/1.0\\r\\n\\r\\n' >&3
sed '1,/^\\r$/d' <&3
"""


@dataclass(frozen=True, slots=True)
class ThreeServers:
    """The cluster, and the folder of each server's streams."""

    cluster: Cluster
    disks: list[Path]

    def node_of(self, server: int) -> str:
        pod = self.cluster.kubectl.within(SYSTEM).json("get", "pod", f"nats-{server}")
        return str(pod["spec"]["nodeName"])

    def streams(self, server: int) -> dict[str, int]:
        """Replicas of each stream that a server knows."""
        shell = ("exec", f"nats-{server}", "--", "bash", "-ec", _STREAMS)
        found = json.loads(self.cluster.kubectl.within(SYSTEM)(*shell))
        streams = [s for account in found["account_details"] for s in account.get("stream_detail", [])]
        return {s["name"]: s["config"]["num_replicas"] for s in streams}

    def lose(self, server: int) -> str:
        """Stop the node of a server; the node's name."""
        node = self.node_of(server)
        self.cluster.nodes[node].stop()
        return node

    def come_back(self, node: str, job: Job, server: int) -> None:
        """Start the node again; returns once its server is ready: it has then what it missed."""
        restarts = self._restarts(server)
        self.cluster.reboot(node)
        job.until(lambda: self._restarts(server) > restarts and self._is_ready(server), seconds=300)

    def _container(self, server: int) -> dict[str, Any]:
        pod = self.cluster.kubectl.within(SYSTEM).json("get", "pod", f"nats-{server}")
        container: dict[str, Any] = pod["status"]["containerStatuses"][0]
        return container

    def _restarts(self, server: int) -> int:
        return int(self._container(server)["restartCount"])

    def _is_ready(self, server: int) -> bool:
        return bool(self._container(server)["ready"])


@pytest.fixture
def servers(cluster: AnyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    """Three nodes, with the operator and the overlay for three servers on them."""
    if cluster.own is None:
        pytest.skip("this test harms nodes, which only nodes of our own are for")
    with ExitStack() as stack:
        nodes = parse_nodes(["north", "middle", "south"])
        folder = tmp_path_factory.mktemp("three")
        three = stack.enter_context(Cluster(folder, nodes, flags=FLAGS))
        disks = [stack.enter_context(shared_folder()) for _ in nodes]
        install(
            three.kubectl,
            cluster.image,
            storage=disks,
            scratch=tmp_path_factory.mktemp("install"),
            name_server=three.network.dns,
            manifests=NATS_CLUSTER,
            looks_up_names=True,
        )
        yield ThreeServers(three, disks)


def test_a_job_outlives_the_nodes_of_its_servers(servers: ThreeServers) -> None:
    three = servers.cluster
    with job_namespace(three.kubectl) as (kubectl, _):
        kubectl.apply(emulated_example("three"))
        job = Job(kubectl, "three")
        job.advances()
        streams = servers.streams(0)
        assert len(streams) > 3
        assert set(streams.values()) == {3}
        assert len({servers.node_of(server) for server in range(3)}) == 3

        lost = servers.lose(1)
        job.advances()
        for path in servers.disks[1].iterdir():  # it comes back with nothing
            shutil.rmtree(path)
        servers.come_back(lost, job, 1)

        lost = servers.lose(0)
        job.advances()  # so the one that had lost everything has it again: two of three must agree
        servers.come_back(lost, job, 0)
        assert job.status().get("failures", 0) == 0  # no trainer's fault

        steps = job.status()["step"] + 30
        kubectl("patch", "rljob", "three", "--type=merge", f'--patch={{"spec": {{"steps": {steps}}}}}')
        job.until(lambda: job.condition("Succeeded").get("status") == "True", seconds=600)
        job.audit()
