"""A collector of OTLP over HTTP that runs in the test's process: it keeps the spans that it receives."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


class OtlpCollector:
    """What was received.

    Attributes:
        spans: all spans, in the order of arrival.
        resources: attributes of the resources that sent them.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.endpoint = ""

    def named(self, name: str) -> list[Any]:
        return [span for span in list(self.spans) if span.name == name]

    def take(self, body: bytes) -> None:
        for found in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values(found.resource.attributes))
            for scope in found.scope_spans:
                self.spans.extend(scope.spans)


def values(attributes: list[KeyValue]) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in attributes}


@contextmanager
def collector() -> Iterator[OtlpCollector]:
    received = OtlpCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
