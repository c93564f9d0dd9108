"""pytest's fixtures of an API server: `pytest_plugins = ["e2e.harness.fixtures"]` in a conftest.

    def test_x(kubectl: Kubectl, namespace: str): ...

One API server serves all of a session's worker processes; tests keep apart by namespaces. A test that needs to do
harm to it starts a `ControlPlane` of its own, which takes 3 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.harness.availability import available
from e2e.harness.binaries import CONTROL_PLANE, find
from e2e.harness.keeper import lease
from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace


@dataclass(frozen=True, slots=True)
class SharedControlPlane:
    """An administrator's access to the API server that the whole session shares."""

    kubeconfig: Path
    kubectl: Kubectl


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedControlPlane]:
    """A real API server with its controllers and no nodes."""
    with available():
        binaries = find()
        binaries.require(CONTROL_PLANE)
    with available(), lease(session_folder(tmp_path_factory) / "control-plane") as kubeconfig:
        yield SharedControlPlane(kubeconfig, Kubectl(binaries["kubectl"], kubeconfig))


@pytest.fixture(scope="session")
def kubeconfig(control_plane: SharedControlPlane) -> Path:
    """An administrator's."""
    return control_plane.kubeconfig


@pytest.fixture(scope="session")
def kubectl(control_plane: SharedControlPlane) -> Kubectl:
    """As an administrator, in no namespace."""
    return control_plane.kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own. It goes after the test, with the PersistentVolumes made for it."""
    with own_namespace(kubectl, operated=False) as name:
        yield name


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that all worker processes of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
