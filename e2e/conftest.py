"""The cluster of the end-to-end tests: two nodes, in the zones east and west."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import night
from tests.second_try import pytest_runtest_logreport, pytest_runtest_makereport

from e2e.harness.availability import available
from e2e.harness.binaries import built
from e2e.harness.cluster import Cluster
from e2e.harness.find import Source, choose
from e2e.harness.images import BASE_IMAGE, base_image
from e2e.harness.kind import KindCluster
from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace
from e2e.harness.node import parse_nodes
from e2e.harness.volumes import environment_folders
from e2e.installation import install, job_namespace, shared_folder

__all__ = ["pytest_runtest_logreport", "pytest_runtest_makereport"]  # pytest finds these hooks here

pytest_plugins = ["e2e.harness.fixtures"]

_NODES = ("east", "west")
# A lost node is noticed sooner than by default, and goes through the same motions. Autoscalers look more often.
FLAGS = {
    "kube-controller-manager": [
        "--node-monitor-grace-period=20s",
        "--node-monitor-period=2s",
        "--horizontal-pod-autoscaler-sync-period=3s",
    ]
}
_SHARED = Path("/var/tmp")


def pytest_configure() -> None:
    """Let commands be interrupted, also where a shell that has put the tests into the background ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    night.leave_out(config, items)


@dataclass(frozen=True, slots=True)
class AnyCluster:
    """What every test may use; `own` only if the nodes are processes of ours, for tests that harm them.

    `image` is a Debian, or what RLJOB_E2E_IMAGE names, that every node has or can pull.
    """

    kubectl: Kubectl
    kubeconfig: Path
    image: str
    own: Cluster | None = None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    kubectl = built().programs.get("kubectl", Path("kubectl"))
    image = os.environ.get("RLJOB_E2E_IMAGE", BASE_IMAGE)
    with ExitStack() as running:
        with available():
            choice = choose(os.environ)
            if choice.source is Source.OWN:
                own = running.enter_context(Cluster(folder, parse_nodes(_NODES), flags=FLAGS))
                found = AnyCluster(own.kubectl, own.kubeconfig, image, own)
            elif choice.source is Source.KIND:
                images = [base_image()] if image == BASE_IMAGE else []
                shared = [_SHARED, *environment_folders()]
                kind = KindCluster(folder, parse_nodes(_NODES), images=images, shared=shared, kubectl=kubectl)
                running.enter_context(kind)
                found = AnyCluster(kind.kubectl, kind.kubeconfig, image)
            else:
                assert choice.kubeconfig is not None
                found = AnyCluster(Kubectl(kubectl, choice.kubeconfig), choice.kubeconfig, image)
        yield found


@pytest.fixture(scope="session")
def own_cluster(cluster: AnyCluster) -> Cluster:
    """For tests that harm nodes."""
    if cluster.own is None:
        pytest.skip("this test harms nodes, which only nodes of our own are for")
    return cluster.own


@pytest.fixture(scope="session")
def kubectl(cluster: AnyCluster) -> Kubectl:
    """In place of the control plane's: `namespace` is then of the cluster too."""
    return cluster.kubectl


@pytest.fixture(scope="session")
def installed(cluster: AnyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    """The cluster with the operator and NATS on it."""
    with shared_folder() as storage:
        install(
            cluster.kubectl,
            cluster.image,
            storage=[storage],
            scratch=tmp_path_factory.mktemp("install"),
            name_server=cluster.own.network.dns if cluster.own is not None else None,
        )
        yield cluster


@pytest.fixture
def jobs(installed: AnyCluster) -> Iterator[tuple[Kubectl, Path]]:
    """Kubectl in a namespace of the test's own where jobs can run, and the folder behind its claim."""
    with job_namespace(installed.kubectl) as kubectl:
        yield kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own, ready for pods."""
    with own_namespace(kubectl, for_pods=True) as name:
        yield name
