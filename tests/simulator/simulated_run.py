"""A run's folder that tells of a simulated job, as `rljob run` would leave it: with a real ledger, and exact times."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from e2e.harness.nats_server import EmbeddedServer

from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.streams import opened_store
from rljob_core.actions import PublishMetrics
from rljob_core.config import JobConfig
from rljob_core.messages import ENGINE_SIGNAL, STEP_METRICS, EngineSignal
from rljob_core.planner import Decision
from rljob_core.records import Record
from rljob_core.spec import API_VERSION
from rljob_runtime.messaging.ledger import Ledger
from rljob_sim import Scenario, SimulationReport
from rljob_sim.job import SimulatedJob


class NotingJob(SimulatedJob):
    """A simulated job that keeps what a coordinator would have stored."""

    def __init__(self, scenario: Scenario) -> None:
        self.records: list[tuple[Record, ...]] = []
        self.metrics: list[bytes] = []
        super().__init__(scenario)

    def _perform(self, decision: Decision) -> None:
        if decision.records:
            self.records.append(tuple(decision.records))
        for action in decision.actions:
            if isinstance(action, PublishMetrics):
                self.metrics.append(STEP_METRICS.dump_json(action.metrics) + b"\n")
        super()._perform(decision)

    def signals(self) -> list[EngineSignal]:
        """The engines' last heartbeats."""
        return [engine.signal() for engine in self._engines.values()]


def write_simulated_run(folder: RunFolder, scenario: Scenario) -> SimulationReport:
    """Simulate a job and write it down; no server is left."""
    job = NotingJob(scenario)
    report = job.run()
    config = scenario.config
    metadata = {"name": config.job, "namespace": config.namespace}
    spec = config.spec.model_dump(mode="json", by_alias=True)
    manifest: dict[str, Any] = {
        "apiVersion": API_VERSION, "kind": "RLJob", "metadata": metadata, "spec": spec,
    }  # fmt: skip
    folder.claim(Identity(config.job, config.namespace, config.uid, "model", "", manifest, given=manifest))
    folder.metrics.write_bytes(b"".join(job.metrics))
    # Real engines count the steps to which their profiles are fitted.
    signals = [
        replace(signal, profile=replace(signal.profile, steps=100))
        for signal in job.signals()
        if signal.profile
    ]
    folder.engines.write_bytes(b"[" + b",".join(map(ENGINE_SIGNAL.dump_json, signals)) + b"]")
    asyncio.run(_store(folder, config, job))
    return report


async def _store(folder: RunFolder, config: JobConfig, job: NotingJob) -> None:
    async with EmbeddedServer(folder.nats) as server, opened_store(config, server.url) as store:
        ledger = Ledger(store, job=config.uid, instance="simulated")
        await ledger.replay()
        writer = job.planner.state.writer
        await ledger.claim(writer, job.records[0])
        for records in job.records[1:]:
            await ledger.append(writer, records)
