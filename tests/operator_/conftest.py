"""Fixtures of the operator's tests: a small job, a cluster's defaults, and servers."""

from __future__ import annotations

import os

import pytest
from dictionary_server import DictionaryServer
from e2e.harness.fixtures import SharedControlPlane
from operators import Namespace, install_crds
from small_job import MakeJob, make_small_job

from rljob_operator.children.cluster_defaults import ClusterDefaults


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on an API server need Kubernetes' programs."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker("kube")


@pytest.fixture
def make_job() -> MakeJob:
    """`make_job(trainer__numNodes=2)` is the small job with spec.trainer.numNodes 2."""
    return make_small_job


@pytest.fixture
def defaults() -> ClusterDefaults:
    return ClusterDefaults(
        nats_url="nats://127.0.0.1:4222", weights_uri="/w", checkpoint_uri="/c", trainer_log_uri="/t"
    )


@pytest.fixture
def server() -> DictionaryServer:
    return DictionaryServer()


@pytest.fixture(scope="module")
def crds(control_plane: SharedControlPlane) -> SharedControlPlane:
    """The session's API server, which knows RLJobs."""
    install_crds(control_plane.kubectl)
    return control_plane


@pytest.fixture
def watched(crds: SharedControlPlane, namespace: str) -> Namespace:
    """A namespace of the test's own."""
    return Namespace(crds.kubectl.within(namespace))


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment variables of local processes."""
    return dict(os.environ)
