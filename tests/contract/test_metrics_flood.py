"""What one job's workers send to the operator costs it little, and costs other jobs nothing: on a real nats-server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from cluster_jobs import ISSUER, SEEDS, job_of, operator, prepare, role_store
from e2e.harness.nats_server import EmbeddedServer
from tests.waiting import until_async

from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS, STEP_METRICS, EngineSignal, StepMetrics
from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.credentials import STREAMS, JobKeys, operator_credentials
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile import metrics as metrics_module
from rljob_operator.reconcile.engine_loads import EngineLoads
from rljob_operator.reconcile.metrics import LINES, MetricsFeed, merged
from rljob_operator.reconcile.nats_connection import NatsConnection

FLOOD = 3000


def line(step: int) -> bytes:
    return STEP_METRICS.dump_json(StepMetrics(step=step, version=step, seconds=0.0))


@pytest.mark.timeout(400)
async def test_a_job_that_floods_the_operator_is_read_no_faster_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []

    def counted(before: JobMetrics | None, line: StepMetrics) -> JobMetrics:
        parsed.append(line.step)
        return merged(before, line)

    monkeypatch.setattr(metrics_module, "merged", counted)
    thief, other = (job_of(uuid4().hex) for _ in range(2))
    uids = hostile_uid, honest_uid = thief.metadata.uid or "", other.metadata.uid or ""
    credentials = tmp_path / "feed.creds"
    credentials.write_text(operator_credentials(ISSUER))
    accounts = server_config(SEEDS, folder=str(tmp_path / "accounts"))
    async with (
        EmbeddedServer(tmp_path, accounts=accounts) as server,
        operator(server.url, tmp_path) as streams,
    ):
        connection = NatsConnection(server.url, credentials=str(credentials), authority=ISSUER.trusted)
        feed = MetricsFeed(connection, ISSUER)
        for job in (thief, other):
            await prepare(streams, job, 64 << 20)
            feed._senders[account_of(job)] = ("default", job.metadata.uid or "")  # both have the same name
        running = asyncio.create_task(connection.run())
        stores = {uid: role_store(server.url, uid, Holder.COORDINATOR) for uid in uids}
        try:
            for store in stores.values():
                await store.open()
            await until_async(lambda: connection.client)
            began = asyncio.get_running_loop().time()
            hostile, honest = stores[hostile_uid], stores[honest_uid]
            await hostile.publish(Channel.METRICS, "steps", b" " * 900_000 + line(999_999))
            for first in range(0, FLOOD, 100):
                steps = range(first, first + 100)
                await asyncio.gather(*(hostile.publish(Channel.METRICS, "steps", line(n + 1)) for n in steps))
            await honest.publish(Channel.METRICS, "steps", line(1_000_000))
            heard = await until_async(lambda: feed.metrics(("default", honest_uid)))
            assert heard.step == 1_000_000
            # The newest line is taken once the second is over, and none is lost for good.
            await until_async(lambda: (feed.metrics(("default", hostile_uid)) or JobMetrics()).step >= FLOOD)
            seconds = asyncio.get_running_loop().time() - began
            assert 999_999 not in parsed
            assert len(parsed) - 1 <= (LINES + 1) * (int(seconds) + 2)
            assert len(parsed) < FLOOD // 4
        finally:
            running.cancel()
            await asyncio.gather(
                running, *(store.close() for store in stores.values()), return_exceptions=True
            )


def account_of(job: RLJob) -> str:
    return JobKeys.of(job, ISSUER).account(STREAMS)


def test_signals_of_any_number_of_engines_take_a_bounded_room() -> None:
    spec = job_of(uuid4().hex).spec
    loads = EngineLoads(spec)
    for number in range(10_000):
        signal = EngineSignal(f"p-{number}.1f", "cpu", 1, 1, 0, 8, number, 0, 0)
        loads.take(f"{ENGINE_SIGNALS}p-{number}.1f", ENGINE_SIGNAL.dump_json(signal))
    loads.take(f"{ENGINE_SIGNALS}large.1f", b"x" * 900_000)
    loads.take(f"{ENGINE_SIGNALS}none.1f", b"x")
    assert len(loads) == 66, "twice the one engine of the job, and 64"
    found = loads.by_pod()
    assert found["p-9999"] == 9999
    assert not {"large", "none", "p-0"} & found.keys()
