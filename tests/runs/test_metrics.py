"""A real Prometheus scrapes a real job, and a collector in this process receives its traces.

Every metric arrives, every query of the dashboard answers, the rules are read and quiet, and both see an engine die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.emulated import emulated
from tests.otlp_collector import OtlpCollector, collector, values
from tests.prometheus_server import PrometheusServer
from tests.waiting import until

from rljob_cli.generate.alerts import ALERTS
from rljob_cli.generate.dashboard import dashboard
from rljob_contract.tiny_models import tiny_model
from rljob_runtime.telemetry.catalogue import CATALOGUE, CoordinatorMetrics, RolloutMetrics, TrainerMetrics
from rljob_runtime.telemetry.metric import MetricKind
from runs import LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKOUT = Path(__file__).parents[2]
RULES = CHECKOUT / "manifests/components/monitoring/rules.yaml"
ABSENT = {
    CoordinatorMetrics.HELDOUT_REWARD,  # the job has no evaluation
    CoordinatorMetrics.HELDOUT_PASS,
    CoordinatorMetrics.ABORTED,  # nothing fails until the test kills the engine
    CoordinatorMetrics.FAILED_ATTEMPTS,
    RolloutMetrics.REJECTED,
    RolloutMetrics.KV_TOKENS,  # an emulated engine has no cache
    RolloutMetrics.OUTBOX_BYTES,  # no engine is at a site
    RolloutMetrics.OUTBOX_LIMIT_BYTES,
    *CATALOGUE["audit"],
}
"""Metrics that this job does not have."""


@pytest.fixture
def traces() -> Iterator[OtlpCollector]:
    with collector() as received:
        yield received


@pytest.fixture
def run(tmp_path: Path, traces: OtlpCollector, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRun]:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "500")
    # An engine that is slower than the trainer: whenever it is killed, it holds work.
    sections = emulated(step_seconds=0.05, decode_seconds=0.1)
    sections["rollout"]["pools"] = [{"name": "cpu", "replicas": 1, "costPerHour": "2.10"}]
    manifest = write_job(tmp_path, tiny_model(tmp_path / "model"), steps=400, **sections)
    begun = LiveRun(manifest, tmp_path / "run", "--metrics")
    yield begun
    begun.stop()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[PrometheusServer]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    server = PrometheusServer(folder, targets=str(tmp_path / "run/prometheus/*.json"), rules=RULES)
    yield server
    server.stop()


def test_a_job_and_its_engine_s_death_are_seen(
    run: LiveRun, prometheus: PrometheusServer, traces: OtlpCollector
) -> None:
    def answered(what: str, query: str) -> list[dict[str, Any]]:
        return until(
            lambda: prometheus.query(query),
            what,
            every=0.5,
            shown=lambda: run.said[-2000:] + run.logs(),
        )

    answered("roles", "count(up == 1) == 4")
    answered("steps", f"{TrainerMetrics.STEPS.name} >= 3 and on () {CoordinatorMetrics.STEP.name} >= 3")
    names = set(prometheus.get("label/__name__/values"))
    for metric in {one for metrics in CATALOGUE.values() for one in metrics} - ABSENT:
        end = "_count" if metric.kind is MetricKind.HISTOGRAM else ""
        assert metric.name + end in names
        (meta, *_) = prometheus.get("metadata", metric=metric.name.removesuffix("_total")).values() or [[]]
        assert not meta or meta[0]["type"] == metric.kind.value
    (engine,) = prometheus.query(RolloutMetrics.SLOTS.name)
    assert {name: engine["metric"][name] for name in ("namespace", "rljob", "role", "pool", "pod")} == {
        "namespace": "default",
        "rljob": "job",
        "role": "rollout",
        "pool": "cpu",
        "pod": "job-rollout-cpu-0",
    }

    # The figures are the job's own.
    consumed = f'{CoordinatorMetrics.TRAJECTORIES.name}{{event="consumed"}}'
    (same,) = answered(
        "trajectories", f"{consumed} == on (rljob) group_right 32 * {CoordinatorMetrics.STEP.name}"
    )
    assert float(same["value"][1]) >= 96
    answered("price", f"{CoordinatorMetrics.COST_PER_HOUR.name} == 2.1")
    answered(
        "staleness within its bound",
        f'{TrainerMetrics.STALENESS.name}_bucket{{le="1.0"}} == ignoring (le) '
        f"{TrainerMetrics.STALENESS.name}_count",
    )

    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = (
                target["expr"]
                .replace("$__rate_interval", "10s")
                .replace("$__range", "60s")
                .replace("$namespace", ".*")
                .replace("$rljob", ".*")
            )
            found = prometheus.query(text)
            assert found or "vllm:" in text or any(metric.name in text for metric in ABSENT), panel["title"]
    while True:  # until each rule was evaluated
        loaded = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in loaded):
            break
        time.sleep(0.5)
    assert [(rule["name"], rule["health"]) for rule in loaded] == [(alert.name, "ok") for alert in ALERTS]
    assert [rule["name"] for rule in loaded if rule["state"] == "firing"] == []

    (before,) = answered("start of the engine", 'process_start_time_seconds{role="rollout"}')
    run.kill("job-rollout-cpu-0")
    answered("failed attempt", f'{CoordinatorMetrics.FAILED_ATTEMPTS.name}{{reason="EngineLost"}} > 0')
    answered("new engine", f'process_start_time_seconds{{role="rollout"}} > {before["value"][1]}')

    def seen(what: str, *, by: Callable[[Any], object]) -> Any:
        return until(
            lambda: next(filter(by, list(traces.spans)), None),
            what,
            every=0.5,
            shown=run.logs,
        )

    first = seen("trace", by=lambda span: span.name == "trajectory")
    assert {"service.name": "rljob", "rljob.job": "job"}.items() <= traces.resources[0].items()
    about = values(first.attributes)
    assert about["rljob.outcome"] == "consumed"
    assert 0 <= about["rljob.staleness"] <= 1
    own = [span for span in traces.spans if span.parent_span_id == first.span_id]
    assert {span.trace_id for span in own} == {first.trace_id}
    own.sort(key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in own] == ["queue", "generate", "score", "wait", "train"]
    times = [time for span in own for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (first.start_time_unix_nano, first.end_time_unix_nano)
    seen(
        "move to another engine", by=lambda s: {"migrated", "restarted"} & {event.name for event in s.events}
    )
    seen("new weights in a response", by=lambda s: "weights announced" in {event.name for event in s.events})
