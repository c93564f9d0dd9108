"""Serves a role's metrics over HTTP, in threads of its own: `/metrics`, as Prometheus reads it.

Metrics never disturb a role. A port that is taken, or a folder that cannot be written, is a warning; at most
`MOST_CONNECTIONS` are answered at a time, each for `CONNECTION_SECONDS`; and however often somebody asks, metrics are
rendered once per `FRESH_SECONDS`. `prometheus_client` is imported here alone, and only by a role that serves.

What libraries have put into `prometheus_client`'s own registry follows after the role's metrics, under its own names:
those of vLLM (`vllm:…`), and of the process and Python.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_core import worker_protocol
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.metric import MetricKind
from rljob_runtime.telemetry.recorder import Distribution, RecordedMetric, Recorder

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 4
CONNECTION_SECONDS = 10.0
"""In which a connection ends: as long as Prometheus waits, if nothing else is configured."""
FRESH_SECONDS = 0.5


@contextmanager
def served(recorder: Recorder, *, role: str, namespace: str, job: str) -> Iterator[None]:
    """Serve a role's metrics at the address that the environment names, if it names one, until the block ends.

    Args:
        recorder: of the role.
        role, namespace, job: labels of the process, where Prometheus finds it by a file; in a cluster, pods say them.
    """
    address = os.environ.get(worker_protocol.METRICS_ADDRESS, "") if role in CATALOGUE else ""
    labels = {"namespace": namespace, "rljob": job, "role": role}
    if pool := os.environ.get(worker_protocol.POOL):
        labels["pool"] = pool
    server = _started(recorder, address, labels) if address else None
    recorder.is_read = server is not None
    try:
        yield
    finally:
        if server is not None:
            server.stop()


def _started(recorder: Recorder, address: str, labels: Mapping[str, str]) -> MetricsServer | None:
    try:
        server = MetricsServer(recorder, address, labels)
    except Exception as error:  # whatever it is, the role can do without
        log.warning("metrics are not served at %s: %s", address, error)
        return None
    log.info("metrics: http://%s/metrics", server.address)
    return server


class MetricsServer:
    """Serves one role's metrics until `stop`.

    Args:
        recorder: of the role.
        address: `host:port`; without a host, all addresses; port 0 is any free one.
        labels: of the file by which Prometheus finds this process.

    Attributes:
        address: where it listens, with its port.

    Raises:
        OSError: the address cannot be used.
        ValueError: it is no address.
    """

    def __init__(self, recorder: Recorder, address: str, labels: Mapping[str, str]) -> None:
        host, _, port = address.rpartition(":")
        self._rendered = _Rendered(recorder)
        self._server = _MetricsHTTPServer((host.strip("[]"), int(port)), self._rendered)
        bound = self._server.server_address
        self.address = f"{host or 'localhost'}:{bound[1]}"
        self._target = _write_target(self.address, labels)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; what is being answered ends with the process."""
        self._server.shutdown()
        self._server.server_close()
        if self._target is not None:
            with suppress(OSError):
                self._target.unlink()


def _write_target(address: str, labels: Mapping[str, str]) -> Path | None:
    """Write a file by which Prometheus finds this process (`file_sd_configs`), if the environment names a folder."""
    folder = os.environ.get(worker_protocol.METRICS_TARGETS, "")
    if not folder:
        return None
    pod = os.environ.get(worker_protocol.POD, str(os.getpid()))
    path = Path(folder) / f"{pod}.json"
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(
            json.dumps([{"targets": [address], "labels": {**labels, "pod": pod}}]), encoding="utf-8"
        )
        part.replace(path)
    except OSError as error:
        log.warning("Prometheus will not find %s: %s", address, error)
        return None
    return path


def as_text(recorder: Recorder) -> str:
    """A recorder's metrics in Prometheus' format, for a file."""
    from prometheus_client.exposition import generate_latest

    return generate_latest(_Families(recorder)).decode()


class _Rendered:
    """The metrics as text, rendered at most once per `FRESH_SECONDS`, by whichever thread asks first."""

    def __init__(self, recorder: Recorder) -> None:
        from prometheus_client import REGISTRY
        from prometheus_client.exposition import generate_latest

        self._recorder = recorder
        self._generate: Callable[[Any], bytes] = generate_latest
        self._others = REGISTRY
        self._lock = threading.Lock()
        self._text = b""
        self._until = 0.0

    def text(self) -> bytes:
        """The role's metrics, then those of libraries."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = self._generate(_Families(self._recorder)) + self._of_libraries()
                self._until = time.monotonic() + FRESH_SECONDS
            return self._text

    def _of_libraries(self) -> bytes:
        try:
            return self._generate(self._others)
        # Of a library's collector: the role's own metrics are served nevertheless.
        except Exception as error:
            log.debug("the metrics of libraries are left out: %r", error)
            return b""


class _Families:
    """A recorder as `prometheus_client` reads it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Family]:
        """Every metric that was recorded."""
        return map(_family, self._recorder.snapshot())


def _family(recorded: RecordedMetric) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    metric = recorded.metric
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    plain = (CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, value in recorded.values.items():
        if isinstance(value, Distribution):
            bounds = [*map(str, metric.buckets), "+Inf"]
            cumulative = list(zip(bounds, accumulate(value.counts), strict=True))
            histogram.add_metric(labels, cumulative, value.sum)
        else:
            plain.add_metric(labels, value)
    return histogram if metric.kind is MetricKind.HISTOGRAM else plain


class _MetricsHTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], rendered: _Rendered) -> None:
        self.rendered = rendered
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        if ":" in address[0] or (not address[0] and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__(address, _MetricsHandler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's own, which asks name servers for the name of this machine.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if as many are open as may be."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer within `CONNECTION_SECONDS`, however slowly the client speaks, and make room for the next one."""
        deadline = threading.Timer(CONNECTION_SECONDS, _end, (request,))
        deadline.daemon = True
        try:
            deadline.start()
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  what it overrides
        """A client that goes away is no error of the role's."""
        log.debug("an answer of metrics to %s broke off", client_address, exc_info=True)


def _end(connection: socket.socket) -> None:
    """Let whoever reads from a connection or writes to it return."""
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


class _MetricsHandler(BaseHTTPRequestHandler):
    server: _MetricsHTTPServer

    def do_GET(self) -> None:
        """Answer `/metrics`."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "metrics are at /metrics")
            return
        text = self.server.rendered.text()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  what it overrides
        """Scrapes are not logged."""
