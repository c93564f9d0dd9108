"""Figures that workers publish on JetStream, heard by one subscription for all jobs; and their streams' removal.

Nothing is asked for while a job runs: what a coordinator stores in its metrics stream reaches every subscriber of the
subject as well. An operator that starts shows the figures that the job's status has until the next ones come.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS, STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames
from rljob_operator.cluster.kube.cache import JobKey
from rljob_operator.decisions.observe import JobMetrics, pipeline_in_force
from rljob_operator.decisions.pods import Trouble

log = logging.getLogger(__name__)

_SUBJECT = f"rljob.*.*.*.{Channel.METRICS.value}.>"
_EVERY_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_PATIENCE_SECONDS = 4.0  # a server that starts again is no outage
_SMOOTHING = 0.3
_DIGITS = 4  # in a column that people read


class MetricsFeed:
    """The newest figures of every job.

    Args:
        url: of the NATS server that jobs use unless their spec names another.
        credentials: path of the operator's own credentials, if the server asks for any.

    Attributes:
        on_figures: called with a job that has new figures.
        on_outage: called when `outage` may have changed.
    """

    def __init__(self, url: str, *, credentials: str | None = None) -> None:
        self._url = url
        self._credentials = credentials
        self._client: Client | None = None
        self._figures: dict[JobKey, JobMetrics] = {}
        self._told: dict[JobKey, float] = {}
        self.on_figures: Callable[[JobKey], None] = lambda _: None
        self.on_outage: Callable[[], None] = lambda: None
        self._silent_since = time.monotonic()
        self.unreachable = f"no nats-server answers at {url}"
        """Why the server cannot be reached; empty if it can."""
        self._answered = asyncio.Event()

    def figures(self, key: JobKey) -> JobMetrics | None:
        """The newest figures of a job; None if none came."""
        return self._figures.get(key)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._figures.pop(key, None)
        self._told.pop(key, None)

    async def run(self) -> None:
        """Stay connected, without end."""
        client = Client()
        self._client = client

        async def lost() -> None:
            if self.unreachable:
                return
            self._silent_since = time.monotonic()
            self.unreachable = f"no nats-server answers at {self._url}"
            asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self.on_outage)

        async def back() -> None:
            self.unreachable = ""
            self._answered.set()
            self.on_outage()

        async def failed(error: Exception) -> None:
            log.debug("nats: %r", error)

        try:
            while True:
                with suppress(TimeoutError, OSError, nats.errors.Error):
                    await client.connect(
                        self._url,
                        user_credentials=self._credentials,
                        error_cb=failed,
                        disconnected_cb=lost,
                        reconnected_cb=back,
                        max_reconnect_attempts=-1,
                        reconnect_time_wait=1,
                        allow_reconnect=True,
                        connect_timeout=2,
                    )
                    break
                await asyncio.sleep(1.0)
            await client.subscribe(_SUBJECT, cb=self._heard)
            await back()
            await asyncio.Event().wait()
        finally:
            self._client = None
            with suppress(TimeoutError, OSError, nats.errors.Error):
                await client.close()

    async def _heard(self, message: Msg) -> None:
        _, namespace, job, *_ = message.subject.split(".")
        try:
            line = STEP_METRICS.validate_json(message.data)
        except ValidationError:
            return
        key = namespace, job
        self._figures[key] = _merged(self._figures.get(key), line)
        # A look every so often is enough: the status is not written more often than that.
        now = time.monotonic()
        if now - self._told.get(key, float("-inf")) >= _EVERY_SECONDS:
            self._told[key] = now
            self.on_figures(key)

    async def known(self) -> None:
        """Return once it is known whether the server answers: a start is no end of an outage."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._answered.wait()

    def outage(self, job: RLJob) -> Trouble | None:
        """Why a job cannot go on; None if its server answers, is not ours, or has not been silent for long."""
        if (
            not self._serves(job)
            or not self.unreachable
            or time.monotonic() - self._silent_since < _PATIENCE_SECONDS
        ):
            return None
        return Trouble("NatsUnreachable", self.unreachable)

    async def loads(self, job: RLJob) -> dict[str, int]:
        """By pod, how many trajectories its engine generates or holds; empty if the server does not say."""
        loads: dict[str, int] = {}
        client, names = self._client, _names(job)
        if client is None or not self._serves(job):
            return loads
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                bucket = await client.jetstream().key_value(names.signal_stream.removeprefix("KV_"))
                async for entry in await bucket.watch(f"{ENGINE_SIGNALS}>", ignore_deletes=True):
                    if entry is None:  # all that is there has come
                        break
                    signal = ENGINE_SIGNAL.validate_json(entry.value or b"")
                    pod = signal.engine.rpartition(".")[0]
                    loads[pod] = signal.running + signal.waiting
        except (TimeoutError, nats.errors.Error, ValidationError) as error:
            log.info("loads of %s are not known: %r", job.metadata.name, error)
        return loads

    def _serves(self, job: RLJob) -> bool:
        return job.spec.nats.url in {None, self._url}

    async def make_room(self, job: RLJob, size: int) -> bool:
        """Let a job's trajectory stream hold that many bytes; whether it does, and so needs not be asked again."""
        client = self._client
        if not self._serves(job):
            return True  # its own pods see to it
        if client is None or not client.is_connected:
            return False
        stream = _names(job).stream(Channel.TRAJECTORIES)

        async def ask(request: str, body: Mapping[str, object]) -> dict[str, Any]:
            subject = f"$JS.API.STREAM.{request}.{stream}"
            answer = await client.request(subject, json.dumps(body).encode(), timeout=_TIMEOUT_SECONDS)
            found: dict[str, Any] = json.loads(answer.data)
            return found

        try:
            info = await ask("INFO", {})
            if "error" in info:
                return False  # it is not there yet, and will be created as large
            if not 0 < info["config"]["max_bytes"] < size:
                return True
            answer = await ask("UPDATE", {**info["config"], "max_bytes": size})
        except (TimeoutError, nats.errors.Error) as error:
            log.warning("%s: %r", stream, error)
            return False
        if "error" in answer:
            log.warning(
                "%s does not grow to %d MB: %s", stream, size >> 20, answer["error"].get("description")
            )
        return "error" not in answer

    async def remove_streams(self, job: RLJob) -> None:
        """Delete all streams and buckets of a job; those of another server stay with their owner.

        Raises:
            OSError: the server cannot be reached.
        """
        if not self._serves(job):
            return
        if self._client is None or not self._client.is_connected:
            raise OSError(self.unreachable or "not connected")
        manager = self._client.jsm(timeout=_TIMEOUT_SECONDS)
        for name in _names(job).all_streams:
            try:
                await manager.delete_stream(name)
            except NotFoundError:
                continue
            except (TimeoutError, nats.errors.Error) as error:
                raise OSError(f"{name}: {error}") from error


def _names(job: RLJob) -> StreamNames:
    metadata = job.metadata
    return StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")


def _merged(before: JobMetrics | None, line: StepMetrics) -> JobMetrics:
    """PURE. A line's figures; what it does not say stays."""
    before = replace(before or JobMetrics(), writer_epoch=line.epoch, pipeline=pipeline_in_force(line))
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
        policy_version=line.version,
        reward_mean=round(line.reward_mean, _DIGITS),
        staleness_max=max(before.staleness_max or 0, line.stats.staleness_max),
        staleness_mean=round(line.stats.staleness_mean, _DIGITS),
        tokens_per_second=round(line.tokens_per_second, 1),
    )


def _smoothed(before: float | None, part: float, whole: float) -> float | None:
    """A share, smoothed over some steps."""
    if whole <= 0:
        return before
    share = part / whole
    return share if before is None else before + _SMOOTHING * (share - before)
