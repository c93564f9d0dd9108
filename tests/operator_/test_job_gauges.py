"""Which jobs the operator's metrics name as failed."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.reconcile.job_gauges import failed_jobs
from rljob_operator.telemetry import OperatorMetrics


def cache_of(*statuses: Any) -> KubeCache:
    """Jobs of these statuses, called `job0`, `job1` and so on."""
    cache = KubeCache()
    for number, status in enumerate(statuses):
        metadata = {"namespace": "team", "name": f"job{number}", "uid": f"u{number}"}
        cache.put({"kind": "RLJob", "metadata": metadata, "status": status})
    return cache


def failed(reason: Any, value: Any = "True") -> dict[str, Any]:
    return {
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "Failed", "status": value, "reason": reason},
        ]
    }


def shown(metrics: OperatorMetrics) -> list[str]:
    text = generate_latest(metrics.registry).decode()
    return [line for line in text.splitlines() if line.startswith("rljob_operator_job_failed{")]


def test_jobs_that_have_failed_are_named_until_they_have_not() -> None:
    metrics = OperatorMetrics()
    metrics.set_failed(
        failed_jobs(cache_of(failed("BackoffLimitExceeded"), failed("NotFailed", "False"), {}))
    )
    assert shown(metrics) == [
        'rljob_operator_job_failed{namespace="team",reason="BackoffLimitExceeded",rljob="job0"} 1.0'
    ]
    metrics.set_failed(failed_jobs(cache_of({})))
    assert shown(metrics) == []


@pytest.mark.parametrize(
    "status",
    [
        None,
        "x",
        [],
        {"conditions": "x"},
        {"conditions": None},
        {"conditions": ["x", None, 3, {}]},
        failed("A", True),
    ],
    ids=repr,
)
def test_a_status_that_does_not_read_takes_nothing_from_other_jobs(status: Any) -> None:
    found = dict(failed_jobs(cache_of(status, failed("DeadlineExceeded"))))
    assert found == {("team", "job1"): "DeadlineExceeded"}


@pytest.mark.parametrize("reason", [None, 7, "", "with space", "x" * 65, 'a"b', ["a"]], ids=repr)
def test_a_reason_that_is_no_word_is_no_label(reason: Any) -> None:
    assert dict(failed_jobs(cache_of(failed(reason)))) == {("team", "job0"): "Other"}
