"""What all suites share: one real nats-server per test process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from rljob_runtime.messaging.nats.server import EmbeddedServer

pytest_plugins = ["e2e.harness.fixtures"]  # a real API server, shared by the processes of a session

# Speed is the machine's, which tests share.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the shipped configuration, on a port of its own; tests keep apart by subject."""
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())
