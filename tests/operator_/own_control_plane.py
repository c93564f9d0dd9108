"""Fixtures of a control plane of a module's own, whose controllers make pods and which a test may stop.

control_plane, watched = own_control_plane("restarts")
operator = operator_there()
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.availability import available
from e2e.harness.binaries import CONTROL_PLANE, CONTROLLERS, find
from e2e.harness.control_plane import ControlPlane
from e2e.harness.namespaces import own_namespace
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Operator, install_crds


def own_control_plane(name: str, **options: Any) -> tuple[Any, Any]:
    """The fixtures `control_plane`, which knows RLJobs, and `watched`, a namespace there of each test's own.

    Args:
        name: of its folder.
        options: of `ControlPlane`.
    """

    @pytest.fixture(scope="module")
    def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
        with available():
            find().require((*CONTROL_PLANE, *CONTROLLERS))
        with ControlPlane(tmp_path_factory.mktemp(name), **options) as running:
            install_crds(running.kubectl)
            yield running

    @pytest.fixture
    def watched(control_plane: ControlPlane) -> Iterator[Namespace]:
        with own_namespace(control_plane.kubectl, operated=False) as namespace:
            yield Namespace(control_plane.kubectl.within(namespace))

    return control_plane, watched


def operator_there(**environment: str) -> Any:
    """The fixture `operator`, which runs on the module's `control_plane` for the test's namespace.

    Args:
        environment: variables of its own.
    """

    @pytest.fixture
    def operator(
        control_plane: ControlPlane, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
    ) -> Iterator[Operator]:
        log = tmp_path / "operator.log"
        kubeconfig = control_plane.kubeconfig
        with Operator(kubeconfig, nats_server.url, watched.name, log, **environment) as running:
            yield running

    return operator
