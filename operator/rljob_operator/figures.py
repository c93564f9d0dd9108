"""Figures that workers publish on JetStream, heard by one subscription for all jobs; and their streams' removal.

Nothing is asked for while a job runs: what a coordinator stores in its metrics stream reaches every subscriber of the
subject as well. Only when this operator first hears of a job does it read the stream's last line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames
from rljob_operator.kube_cache import JobKey
from rljob_operator.observe import Figures

log = logging.getLogger(__name__)

_SUBJECT = f"rljob.*.*.*.{Channel.METRICS.value}.>"
_EVERY_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_DIGITS = 4  # in a column that people read


class FiguresFeed:
    """The newest figures of every job.

    Args:
        url: of the NATS server that jobs use unless their spec names another.
        credentials: path of the operator's own credentials, if the server asks for any.

    Attributes:
        on_figures: called with a job that has new figures.
    """

    def __init__(self, url: str, *, credentials: str | None = None) -> None:
        self._url = url
        self._credentials = credentials
        self._client: Client | None = None
        self._figures: dict[JobKey, Figures] = {}
        self._told: dict[JobKey, float] = {}
        self.on_figures: Callable[[JobKey], None] = lambda _: None
        self.unreachable = "not connected yet"
        """Why the server cannot be reached; empty if it can."""

    def figures(self, key: JobKey) -> Figures | None:
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
            self.unreachable = f"no nats-server answers at {self._url}"

        async def back() -> None:
            self.unreachable = ""

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
                await lost()
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

    async def remove_streams(self, job: RLJob) -> None:
        """Delete all streams and buckets of a job; those of another server stay with their owner.

        Raises:
            OSError: the server cannot be reached.
        """
        if job.spec.nats.url is not None and job.spec.nats.url != self._url:
            return
        metadata = job.metadata
        names = StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")
        if self._client is None or not self._client.is_connected:
            raise OSError(self.unreachable or "not connected")
        manager = self._client.jsm(timeout=_TIMEOUT_SECONDS)
        for name in names.all_streams:
            try:
                await manager.delete_stream(name)
            except NotFoundError:
                continue
            except (TimeoutError, nats.errors.Error) as error:
                raise OSError(f"{name}: {error}") from error


def _merged(before: Figures | None, line: StepMetrics) -> Figures:
    """PURE. A line's figures; what it does not say stays."""
    before = before or Figures()
    if line.reward_mean is None or line.stats is None:
        step, version = max(before.step, line.step), max(before.policy_version, line.version)
        return replace(before, step=step, policy_version=version)
    return Figures(
        step=line.step,
        policy_version=line.version,
        reward_mean=round(line.reward_mean, _DIGITS),
        staleness_max=max(before.staleness_max or 0, line.stats.staleness_max),
        staleness_mean=round(line.stats.staleness_mean, _DIGITS),
        tokens_per_second=round(line.tokens_per_second, 1),
    )
