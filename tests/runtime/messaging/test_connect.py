"""A role's store is made from its environment: the address of the server, and credentials if it asks for any."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.harness.nats_server import EmbeddedServer

from rljob_contract.samples import job_config
from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.ports import Channel
from rljob_runtime.messaging.connect import job_store, role_store


@pytest.mark.parametrize("environment", [{}, {worker_protocol.NATS_URL: ""}])
def test_an_environment_without_a_server_is_refused_by_its_variable(environment: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=rf"{worker_protocol.NATS_URL}: is not set: give the address"):
        role_store(job_config(Path()), "reward", environment=environment)


async def test_a_role_reads_what_the_job_has_stored(nats_server: EmbeddedServer) -> None:
    config = job_config(Path())
    store = job_store(config, nats_server.url)
    await store.open()
    await store.publish(Channel.METRICS, "1", b"line")
    environment = {worker_protocol.NATS_URL: nats_server.url, worker_protocol.NATS_CREDENTIALS: ""}
    role = role_store(config, "reward", environment=environment)
    await role.open()
    assert await role.last_sequence(Channel.METRICS) == 1
    await role.close()
    await store.close()
