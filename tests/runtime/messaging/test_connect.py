"""A role's store is made from its environment: the address of the server, and credentials if it asks for any."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer

from rljob_contract.samples import job_config
from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames
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


@pytest.mark.parametrize(("site", "streams"), [(None, True), ("west", False)])
async def test_an_engine_creates_no_streams_at_a_site(
    nats_server: EmbeddedServer, site: str | None, streams: bool
) -> None:
    config = job_config(Path())
    rollout = config.spec.rollout
    pools = [pool.model_copy(update={"site": site}) for pool in rollout.pools]
    spec = config.spec.model_copy(update={"rollout": rollout.model_copy(update={"pools": pools})})
    config = config.model_copy(update={"uid": uuid4().hex, "spec": spec})
    environment = {worker_protocol.NATS_URL: nats_server.url, worker_protocol.POOL: pools[0].name}
    store = role_store(config, "rollout", environment=environment, create=True)
    await store.open()
    client = await nats.connect(nats_server.url)
    name = StreamNames.of_job(namespace=config.namespace, job=config.job, uid=config.uid).stream(
        Channel.LEDGER
    )
    answer = await client.request(f"$JS.API.STREAM.INFO.{name}", timeout=60)
    await client.close()
    await store.close()
    assert ("error" not in json.loads(answer.data)) == streams
