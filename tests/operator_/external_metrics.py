"""The metrics API that autoscalers ask (`external.metrics.k8s.io`), of one figure that a test sets or looks up."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from e2e.harness.certificates import KeyPair

Object = dict[str, Any]
GROUP = "external.metrics.k8s.io"
_VERSION = f"{GROUP}/v1beta1"


class ExternalMetrics:
    """An HTTPS server on loopback.

    Attributes:
        value: of every metric that is asked for.
        source: returns the value of a metric of that name; without one, it is `value`.
        asked: how often one was.
    """

    def __init__(self, pair: KeyPair) -> None:
        self.value = 0
        self.source: Callable[[str], float] | None = None
        self.asked = 0
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = metrics.answer(self.path.partition("?")[0])
                body = json.dumps(answer).encode()
                self.send_response(200 if answer else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> Object:
        """To a GET; empty for what there is not."""
        if path == f"/apis/{_VERSION}":
            resource = {
                "name": "backlog",
                "singularName": "",
                "namespaced": True,
                "kind": "ExternalMetricValueList",
                "verbs": ["get"],
            }
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": _VERSION,
                "resources": [resource],
            }
        if not path.startswith(f"/apis/{_VERSION}/namespaces/"):
            return {}
        self.asked += 1
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        name = path.rpartition("/")[2]
        value = self.value if self.source is None else self.source(name)
        item = {"metricName": name, "metricLabels": {}, "timestamp": now}
        return {
            "kind": "ExternalMetricValueList",
            "apiVersion": _VERSION,
            "metadata": {},
            "items": [{**item, "value": str(value)}],
        }

    def manifests(self) -> list[Object]:
        """By which an API server finds it."""
        port = int(self._server.server_address[1])
        service = {"name": "metrics", "namespace": "default"}
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": service,
                "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"v1beta1.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": "v1beta1",
                    "service": {**service, "port": port},
                    "insecureSkipTLSVerify": True,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                },
            },
        ]
