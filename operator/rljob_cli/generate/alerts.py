"""The alert rules for Prometheus, by the names of the metrics in the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljob_runtime.telemetry.catalogue import AuditMetrics, CoordinatorMetrics, RolloutMetrics

_JOB = "namespace, rljob"
_FAILED_JOBS = "rljob_operator_job_failed"
"""Of the operator (`rljob_operator.telemetry`): jobs whose condition Failed is true."""
_RUNNING = f"on ({_JOB}) {CoordinatorMetrics.RUNNING.name} == 1"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert.

    Attributes:
        name: of the alert.
        query: is true while something is wrong.
        lasting: for how long, before somebody is told.
        severity: `critical` where the job makes no progress or a promise is broken, else `warning`.
        summary: what is wrong; a template of Prometheus.
        remedy: what to do first.
    """

    name: str
    query: str
    lasting: str
    severity: str
    summary: str
    remedy: str


def _starved(stage: str) -> str:
    seconds = CoordinatorMetrics.STARVED_SECONDS.name
    return f'rate({seconds}{{stage="{stage}"}}[10m]) > 0.5 and {_RUNNING}'


_WHO = "{{ $labels.namespace }}/{{ $labels.rljob }}"

ALERTS = (
    AlertRule(
        "RLJobTrainerStarved",
        _starved("trainer"),
        "10m",
        "warning",
        f"The trainer of {_WHO} waits for trajectories more than half of the time",
        "Add engines, or let rollout run further ahead (spec.pipeline.maxStaleness).",
    ),
    AlertRule(
        "RLJobRolloutStarved",
        _starved("rollout"),
        "10m",
        "warning",
        f"More than half of the slots of the engines of {_WHO} are free",
        "The trainer or the rewards are slower than the engines: use fewer of these, or raise maxStaleness.",
    ),
    AlertRule(
        "RLJobStalled",
        f"sum by ({_JOB}) (rate({RolloutMetrics.TOKENS.name}[10m])) == 0 and {_RUNNING}",
        "10m",
        "critical",
        f"No engine of {_WHO} has generated a token for 10 minutes",
        "Look at the engines' logs, and at what they wait for: rljob_rollout_seconds_total by state.",
    ),
    AlertRule(
        "RLJobNoProgress",
        f"time() - {CoordinatorMetrics.COMMIT_TIMESTAMP.name} > 1800 and {_RUNNING}",
        "5m",
        "critical",
        f"{_WHO} has committed no step for half an hour",
        "Look at the job's conditions and at the trainer's log; where steps take that long, raise the limit.",
    ),
    AlertRule(
        "RLJobFailed",
        # Without a coordinator that says so, the operator does; of both, one alert.
        f"max by ({_JOB}) ({CoordinatorMetrics.FAILED.name}) == 1 or max by ({_JOB}) ({_FAILED_JOBS}) == 1",
        "0m",
        "critical",
        f"{_WHO} has failed",
        "The job's condition Failed says why, and what continues it.",
    ),
    AlertRule(
        "RLJobStoreNearlyFull",
        f"{CoordinatorMetrics.STREAM_BYTES.name} / {CoordinatorMetrics.STREAM_LIMIT_BYTES.name} > 0.9",
        "5m",
        "warning",
        f"The stream {{{{ $labels.stream }}}} of {_WHO} is nearly full",
        "Engines wait for room once it is: see docs/nats-security.md for the limits.",
    ),
    AlertRule(
        "RLJobWeightsNotLoaded",
        f"sum by ({_JOB}, pod) (increase({RolloutMetrics.REJECTED.name}[10m])) > 5",
        "5m",
        "warning",
        f"{{{{ $labels.pod }}}} of {_WHO} cannot load new weights",
        "Its log says why: the store of weights does not answer, or tensors do not match their digests.",
    ),
    AlertRule(
        "RLJobAttemptsFail",
        f"sum by ({_JOB}) (rate({CoordinatorMetrics.FAILED_ATTEMPTS.name}[10m])) > 0.2 * sum by ({_JOB}) "
        f'(rate({CoordinatorMetrics.TRAJECTORIES.name}{{event="generated"}}[10m])) and {_RUNNING}',
        "10m",
        "warning",
        f"More than a sixth of what {_WHO} generates is generated again",
        "rljob_coordinator_failed_attempts_total says by reason why.",
    ),
    AlertRule(
        "RLJobSiteAway",
        f"{CoordinatorMetrics.SITES_AWAY.name} > 0",
        "10m",
        "warning",
        f"{{{{ $value }}}} sites of {_WHO} cannot be reached",
        "The other engines go on; look at the link of these sites.",
    ),
    AlertRule(
        "RLJobAuditViolated",
        f'{AuditMetrics.VIOLATIONS.name}{{verdict=~"violated|damaged"}} > 0',
        "0m",
        "critical",
        f"The audit of {_WHO} is {{{{ $labels.verdict }}}}",
        "`rljob audit` names the trajectories: keep the run's folder and its streams as they are.",
    ),
)


def rules() -> dict[str, Any]:
    """The rules as Prometheus reads them, and as the `spec` of a PrometheusRule."""
    return {"groups": [{"name": "rljob", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: AlertRule) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.query,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.remedy},
    }


def prometheus_rule() -> dict[str, Any]:
    """The rules as an object of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "rljob"},
        "spec": rules(),
    }
