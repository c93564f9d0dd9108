"""Exports traces of trajectories by OTLP, as OpenTelemetry's own variables say; off unless `OTEL_TRACES_EXPORTER=otlp`.

The SDK sends in a thread of its own, from a queue of bounded length: a collector that is slow or away costs traces, and
never the coordinator's time. `OTEL_EXPORTER_OTLP_ENDPOINT` says where to, `OTEL_TRACES_SAMPLER` and
`OTEL_TRACES_SAMPLER_ARG` how many. The packages are the extra `traces`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rljob_core.actions import Action
from rljob_core.records import Record
from rljob_runtime.telemetry.trajectory_spans import TraceSpan, TrajectoryTrace, TrajectoryTraces

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger(__name__)

EXPORTER = "OTEL_TRACES_EXPORTER"
_LAST_SECONDS = 3.0
"""For how long the end of a coordinator waits for its last traces to be sent."""


class TraceExport:
    """Exports the traces of one coordinator's trajectories.

    Args:
        tracer: creates the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._traces = TrajectoryTraces()

    def take(self, records: Sequence[Record], actions: Sequence[Action]) -> None:
        """Take what was decided; what is complete is queued to be sent."""
        for trace in self._traces.take(records, actions, time.time_ns()):
            self._send(trace)

    def _send(self, trace: TrajectoryTrace) -> None:
        from opentelemetry.trace import set_span_in_context

        whole = self._begin(trace.whole, None)
        context = set_span_in_context(whole)
        for phase in trace.phases:
            self._begin(phase, context).end(phase.end)
        whole.end(trace.whole.end)

    def _begin(self, span: TraceSpan, context: Context | None) -> Span:
        begun = self._tracer.start_span(
            span.name, context=context, attributes=dict(span.attributes), start_time=span.start
        )
        for event in span.events:
            begun.add_event(event.name, dict(event.attributes), event.at)
        return begun


@contextmanager
def exported(*, namespace: str, job: str) -> Iterator[TraceExport | None]:
    """Export traces until the block ends, if the environment asks for it; None if it does not.

    Args:
        namespace, job: attributes of the resource.
    """
    provider = _provider(namespace, job) if os.environ.get(EXPORTER) == "otlp" else None
    if provider is None:
        yield None
        return
    try:
        yield TraceExport(provider.get_tracer("rljob"))
    finally:
        # A thread that dies with the process: a collector that does not answer must not delay the role's end.
        last = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(_LAST_SECONDS)


def _provider(namespace: str, job: str) -> TracerProvider | None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        about = {"service.name": "rljob", "k8s.namespace.name": namespace, "rljob.job": job}
        provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception as error:  # a package that is missing, a variable that is wrong: the job can do without
        log.warning("%s=otlp, but traces are not exported: %s", EXPORTER, error)
        return None
    return provider
