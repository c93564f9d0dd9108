"""The newest metrics of every job, from one NATS subscription for all jobs.

A coordinator publishes its metrics to a JetStream stream. The server sends each line on to the operator, under the name
of the job's account; or, where jobs have no accounts, every subscriber of the subject receives it as well. So the
operator never has to ask for metrics. After a restart of the operator, a job's status keeps the metrics that it has
until new ones arrive.

A job that floods the operator costs it the parsing of `LINES` short lines a second. Of what comes beyond, the operator
parses only the newest line, once the second is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from pydantic import ValidationError

from rljob_core.autoscale import load_after
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_operator.cluster.kube.cache import JobKey
from rljob_operator.decisions.job_metrics import JobMetrics, pipeline_in_force
from rljob_operator.nats.credentials import STREAMS, Issuer, JobKeys
from rljob_operator.nats.permissions import REPORTS
from rljob_operator.reconcile.nats_connection import NatsConnection

_SUBJECT = f"rljob.*.*.*.{Channel.METRICS.value}.>"
LINE_BYTES = 64 << 10
"""Longer lines are passed over; those of coordinators have a few kilobytes."""
LINES = 8
"""Of a job that are parsed in a second, besides the newest one of the second before."""
_WINDOW_SECONDS = 1.0
_NOTIFY_SECONDS = 1.0  # statuses are written less often than coordinators publish
_SMOOTHING = 0.3
_DIGITS = 4  # for columns that people read


class MetricsFeed:
    """The newest metrics of every job.

    Args:
        connection: not yet running.
        issuer: what the names of the jobs' accounts follow from; None if jobs have none.

    Attributes:
        on_metrics: called with a job's key when new metrics of the job have arrived.
    """

    def __init__(self, connection: NatsConnection, issuer: Issuer | None = None) -> None:
        self._issuer = issuer
        self._senders: dict[str, JobKey] = {}
        """Jobs by the names of their accounts."""
        self._metrics: dict[JobKey, JobMetrics] = {}
        self._notified: dict[JobKey, float] = {}
        self._parsed: dict[JobKey, tuple[float, int]] = {}
        """When a job's second began, and how many of its lines were parsed since then."""
        self._late: dict[JobKey, bytes] = {}
        """The newest line of the jobs that have sent more than may be parsed in this second."""
        self.on_metrics: Callable[[JobKey], None] = lambda _: None
        connection.subscribe(_SUBJECT if issuer is None else f"{REPORTS}.*.>", self._received)

    def expect(self, key: JobKey, uid: str) -> None:
        """Receive the metrics of a job."""
        if self._issuer is not None:
            self._senders[JobKeys(self._issuer, *key, uid).account(STREAMS)] = key

    def metrics(self, key: JobKey) -> JobMetrics | None:
        """The newest metrics of a job; None if none have arrived."""
        return self._metrics.get(key)

    def forget(self, key: JobKey) -> None:
        """Drop the metrics of a job that is gone."""
        for known in (self._metrics, self._notified, self._parsed, self._late):
            known.pop(key, None)
        self._senders = {sender: other for sender, other in self._senders.items() if other != key}

    def _received(self, subject: str, data: bytes) -> None:
        key = self._sender(subject)
        if key is None or len(data) > LINE_BYTES:
            return
        now = time.monotonic()
        began, lines = self._parsed.get(key, (now, 0))
        if now - began >= _WINDOW_SECONDS:
            began, lines = now, 0
        if lines < LINES:
            self._parsed[key] = began, lines + 1
            self._late.pop(key, None)  # it is older
            self._parse(key, data)
            return
        if key not in self._late:
            asyncio.get_running_loop().call_later(began + _WINDOW_SECONDS - now, self._parse_late, key)
        self._late[key] = data

    def _parse_late(self, key: JobKey) -> None:
        if (data := self._late.pop(key, None)) is not None:
            self._parse(key, data)

    def _parse(self, key: JobKey, data: bytes) -> None:
        try:
            line = STEP_METRICS.validate_json(data)
        except ValidationError:
            return
        self._metrics[key] = merged(self._metrics.get(key), line)
        now = time.monotonic()
        if now - self._notified.get(key, float("-inf")) >= _NOTIFY_SECONDS:
            self._notified[key] = now
            self.on_metrics(key)

    def _sender(self, subject: str) -> JobKey | None:
        parts = subject.split(".")
        if self._issuer is None:
            return parts[1], parts[2]
        return self._senders.get(parts[len(REPORTS.split("."))])


def merged(before: JobMetrics | None, line: StepMetrics) -> JobMetrics:
    """A job's metrics after a line of its metrics stream; what the line does not contain stays as before."""
    before = replace(
        before or JobMetrics(),
        writer_epoch=line.epoch,
        pipeline=pipeline_in_force(line),
        optimizer_reset=line.optimizer_reset,
        samples_lost=line.samples_lost,
        sites_away=line.sites_away,
        sites_held=line.sites_held,
        attempt=line.trainer_attempt,
        load=load_after(None if before is None else before.load, line),
        stream_bytes=max(before.stream_bytes if before else 0, line.room_wanted),
    )
    if line.reward_mean is None or line.stats is None:
        step, version = max(before.step, line.step), max(before.policy_version, line.version)
        return replace(before, step=step, policy_version=version)
    stats = line.stats
    seconds = stats.seconds_waiting + stats.seconds_training + stats.seconds_publishing
    return replace(
        before,
        trainer_waiting=_smoothed(before.trainer_waiting, stats.seconds_waiting, seconds),
        engines_idle=_smoothed(before.engines_idle, line.slots - line.assigned, line.slots),
        step=line.step,
        step_attempt=line.trainer_attempt,
        policy_version=line.version,
        reward_mean=round(line.reward_mean, _DIGITS),
        staleness_max=max(before.staleness_max or 0, line.stats.staleness_max),
        staleness_mean=round(line.stats.staleness_mean, _DIGITS),
        tokens_per_second=round(line.tokens_per_second, 1),
    )


def _smoothed(before: float | None, part: float, whole: float) -> float | None:
    """The share `part / whole`, exponentially smoothed over the steps."""
    if whole <= 0:
        return before
    share = part / whole
    return share if before is None else before + _SMOOTHING * (share - before)
