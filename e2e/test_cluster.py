"""The cluster of the end-to-end tests does what a cluster does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from e2e.conftest import AnyCluster
from e2e.harness.cluster import Cluster
from e2e.harness.kubectl import Kubectl
from e2e.harness.volumes import environment, host_volume
from e2e.pods import pod, service

pytestmark = pytest.mark.timeout(900)  # the first makes the image and starts the cluster

SLEEP = ["sleep", "infinity"]


@pytest.fixture
def here(cluster: AnyCluster, namespace: str) -> Kubectl:
    """Kubectl in the test's namespace, which admits only restricted pods."""
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    return cluster.kubectl.within(namespace)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that all users of this machine, and so all pods, may write to."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def eventually(kubectl: Kubectl, *arguments: str, seconds: float = 300.0) -> str:
    """What a command prints once it succeeds: kube-proxy and CoreDNS hear of changes a little later."""
    until(lambda: kubectl.succeeds(*arguments), " ".join(arguments), seconds=seconds, every=0.2)
    return kubectl(*arguments)


@pytest.mark.smoke
def test_two_zones_are_ready(cluster: AnyCluster) -> None:
    zones = set()
    for node in cluster.kubectl.json("get", "nodes")["items"]:
        conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        assert conditions["Ready"] == "True"
        zones.add(node["metadata"]["labels"].get("topology.kubernetes.io/zone"))
    assert zones >= {"east", "west"}


@pytest.mark.smoke
def test_pods_of_both_zones_meet_by_the_name_of_a_service(
    cluster: AnyCluster, here: Kubectl, namespace: str
) -> None:
    python = environment(namespace)
    serve = [python.python, "-m", "http.server", "8000", "--directory", "/usr/lib"]
    here.apply(
        [
            *python.manifests,
            service("server", 8000),
            pod("server", serve, image=cluster.image, zone="east", environment=python),
            pod("client", SLEEP, image=cluster.image, zone="west", environment=python),
        ]
    )
    here.wait("condition=Ready", "pod/server", "pod/client")
    for host in ("server", f"server.{namespace}.svc.cluster.local"):
        program = (
            f"from urllib.request import urlopen; print(urlopen('http://{host}:8000/os-release').status)"
        )
        assert eventually(here, "exec", "client", "--", python.python, "-c", program).strip() == "200"
    assert "GET /os-release" in here("logs", "server")


def test_pods_import_the_project(cluster: AnyCluster, here: Kubectl, namespace: str) -> None:
    python = environment(namespace)
    program = "import rljob_core.errors, ssl, sqlite3; print('imported')"
    here.apply(
        [
            *python.manifests,
            pod("importer", [python.python, "-c", program], image=cluster.image, environment=python),
        ]
    )
    here.wait("jsonpath={.status.containerStatuses[0].state.terminated}", "pod/importer")
    assert here("logs", "importer").strip() == "imported"


def test_a_volume_is_the_same_in_both_zones(
    cluster: AnyCluster, here: Kubectl, namespace: str, shared_folder: Path
) -> None:
    here.apply(
        [
            *host_volume("shared", shared_folder, namespace=namespace),
            *(
                pod(zone, SLEEP, image=cluster.image, zone=zone, volumes={"shared": "/shared"})
                for zone in ("east", "west")
            ),
        ]
    )
    here.wait("condition=Ready", "pod/east", "pod/west")
    here("exec", "east", "--", "sh", "-c", "echo from the east > /shared/note")
    assert here("exec", "west", "--", "cat", "/shared/note") == "from the east\n"
    assert (shared_folder / "note").read_text() == "from the east\n"


def test_a_drained_node_is_empty_and_refuses_pods(cluster: AnyCluster, here: Kubectl) -> None:
    selector = "topology.kubernetes.io/zone=west"
    node = cluster.kubectl("get", "nodes", f"--selector={selector}", "--output=name").strip()
    here.apply(pod("evicted", SLEEP, image=cluster.image, zone="west"))
    here.wait("condition=Ready", "pod/evicted")
    try:
        cluster.kubectl("drain", node, "--pod-selector=app=evicted", "--force", "--timeout=300s")
        assert not here.json("get", "pods")["items"]
        here.apply(pod("refused", SLEEP, image=cluster.image, zone="west"))
        here.wait("condition=PodScheduled=false", "pod/refused")
    finally:
        cluster.kubectl("uncordon", node)
    here.wait("condition=Ready", "pod/refused")


def test_a_node_without_power_is_noticed_and_comes_back(own_cluster: Cluster) -> None:
    west = own_cluster.nodes["west"]
    west.stop()
    own_cluster.kubectl.wait("condition=Ready=Unknown", "node/west", seconds=240)
    own_cluster.reboot("west")


def test_nodes_can_have_devices_that_they_have_not(own_cluster: Cluster) -> None:
    own_cluster.give("east", {"example.com/gpu": 8})
    capacity = own_cluster.kubectl.json("get", "node", "east")["status"]["capacity"]
    assert capacity["example.com/gpu"] == "8"
