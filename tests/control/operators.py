"""The operator as its own process against a real API server, and what a test looks at there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.harness.kubectl import Kubectl

Object = dict[str, Any]
WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Operator:
    """`python -m rljob_operator.main`, watching one namespace."""

    def __init__(self, kubeconfig: Path, nats_url: str, namespace: str, log: Path) -> None:
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "RLJOB_NATS_URL": nats_url,
            "WATCH_NAMESPACES": namespace,
            "RLJOB_PROBE_HOST": "127.0.0.1",
            "RLJOB_PROBE_PORT": "0",
        }
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None:
            sys.stdout.write(self.log.read_text()[-6000:])

    def start(self) -> None:
        with self.log.open("ab") as output:
            begin = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rljob_operator.main"],
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def port() -> int:
            found = re.search(r"probes and metrics on port (\d+)", self.log.read_text()[begin:])
            return int(found[1]) if found else 0

        self._port = until(port)
        until(lambda: self.status("readyz") == 200)

    def kill(self) -> None:
        """As the machine would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """In order."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(timeout=20) == 0

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=2) as answer:
                return int(answer.status)
        except OSError:
            return 0

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def requests(self, verbs: tuple[str, ...] = WRITES) -> int:
        """Requests to the API server so far."""
        pattern = r'^rljob_operator_api_requests_total\{.*verb="(\w+)"\} (\S+)$'
        found = re.findall(pattern, self.metrics(), re.MULTILINE)
        return int(sum(float(count) for verb, count in found if verb in verbs))


class Namespace:
    """A namespace through kubectl, as a user sees it."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.name = kubectl.namespace

    def __call__(self, *arguments: str) -> str:
        """kubectl in this namespace."""
        return self.kubectl(*arguments)

    def apply(self, manifest: Object) -> None:
        self.kubectl("apply", "--server-side", "--filename=-", input_text=json.dumps(manifest))

    def get(self, kind: str, name: str) -> Object | None:
        text = self("get", kind, name, "--output=json", "--ignore-not-found")
        return json.loads(text) if text else None

    def names(self, kind: str) -> list[str]:
        text = self("get", kind, "--output=name")
        return sorted(line.partition("/")[2] for line in text.split())

    def there(self, kind: str, name: str) -> Object:
        """The object, once it is there."""
        found: Object = until(lambda: self.get(kind, name))
        return found

    def condition(self, job: str, kind: str) -> Object | None:
        found = self.get("rljob", job) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), None)

    def is_true(self, job: str, kind: str) -> bool:
        found = self.condition(job, kind)
        return found is not None and found["status"] == "True"


def until(condition: Callable[[], Any], *, seconds: float = 40.0) -> Any:
    """What the condition gives once it gives anything true."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
