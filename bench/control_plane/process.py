"""Starts the operator's process, and reads its CPU time, memory and metrics from outside."""

from __future__ import annotations

import os
import re
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

from e2e.harness.daemon import Daemon
from e2e.harness.ports import free_ports, http_ok
from e2e.harness.started import Started

from bench.control_plane.world import World, processor_seconds

_READY_SECONDS = 120.0
_MEGABYTE = 1e6


class OperatorProcess(Started):
    """`python -m rljob_operator.main`, watching all namespaces with the rights of its manifest."""

    def __init__(self, world: World) -> None:
        (self._port,) = free_ports(1)
        environment = {
            **os.environ,
            "KUBECONFIG": str(world.operator_kubeconfig),
            "RLJOB_NATS_URL": world.nats.url,
            "RLJOB_PROBE_HOST": "127.0.0.1",
            "RLJOB_PROBE_PORT": str(self._port),
        }
        self._daemon = Daemon(
            "operator",
            [sys.executable, "-m", "rljob_operator.main"],
            log=world.folder / "operator.log",
            environment=environment,
            grace=20.0,
        )
        self.started = 0.0
        """When the process was started, in seconds since 1970."""

    def start(self) -> None:
        """Start it, and wait until its readiness probe succeeds."""
        self.started = time.time()
        self._daemon.start()
        ready = partial(http_ok, "127.0.0.1", self._port, "/readyz")
        self._daemon.wait_until(ready, seconds=_READY_SECONDS)

    def stop(self) -> None:
        """End it by SIGTERM."""
        self._daemon.stop()

    @property
    def running(self) -> bool:
        return self._daemon.running

    def last_words(self) -> str:
        return self._daemon.last_words()

    def cpu_seconds(self) -> float:
        """Since its start."""
        return processor_seconds(self._daemon.pid)

    def megabytes(self) -> tuple[float, float]:
        """Megabytes of resident memory: now, and the peak."""
        text = Path(f"/proc/{self._daemon.pid}/status").read_text()
        now, highest = (re.search(rf"{field}:\s+(\d+) kB", text) for field in ("VmRSS", "VmHWM"))
        assert now is not None
        assert highest is not None
        return int(now[1]) * 1024 / _MEGABYTE, int(highest[1]) * 1024 / _MEGABYTE

    def reconciles(self) -> int:
        """Reconciles since its start, failed ones included."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        counts = re.findall(r"^rljob_operator_reconcile_duration_seconds_count\S* (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, counts)))
