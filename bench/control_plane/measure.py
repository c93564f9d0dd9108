"""Measures a stretch of time: the operator's CPU, memory and requests, and the use of the machine's cores."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from bench.control_plane.audit import Request
from bench.control_plane.process import OperatorProcess
from bench.control_plane.world import World, cores

Measurements = dict[str, Any]
"""What was measured, by name: numbers, or for one name several."""


class Stretch:
    """A stretch from its construction until `end`."""

    def __init__(self, world: World, operator: OperatorProcess) -> None:
        self._world = world
        self._operator = operator
        world.audit.read()
        self._spent = self._cpu()
        self._reconciles = operator.reconciles()
        self.began = time.time()

    def end(self) -> tuple[Measurements, list[Request]]:
        """Its figures, and the requests that were made during it."""
        seconds = time.time() - self.began
        spent = {name: total - self._spent[name] for name, total in self._cpu().items()}
        requests = self._world.audit.read()
        ours = [request for request in requests if request.operator]
        reconciles = self._operator.reconciles() - self._reconciles
        now, highest = self._operator.megabytes()
        whole = spent.pop("machine")
        figures = {
            "seconds": round(seconds, 2),
            "operator_cpu_seconds": round(spent["operator"], 2),
            "operator_megabytes": round(now),
            "operator_megabytes_highest": round(highest),
            "requests": len(ours),
            "writes": sum(request.write for request in ours),
            "refused": sum(request.status >= 400 for request in ours),
            "kinds": dict(Counter(f"{r.verb} {r.resource}/{r.subresource}".rstrip("/") for r in ours)),
            "reconciles": reconciles,
            "reconciles_per_second": round(reconciles / seconds, 1),
            # The rest: kubectl, this benchmark, and other processes of the machine.
            "cores_of": {name: round(value / seconds, 2) for name, value in spent.items()},
            "cores_of_others": round((whole - sum(spent.values())) / seconds, 2),
            "cores": cores(),
        }
        return figures, requests

    def _cpu(self) -> dict[str, float]:
        return {**self._world.cpu_seconds(), "operator": self._operator.cpu_seconds()}


def percentile(values: list[float], share: float) -> float:
    """The least value that no more than `1 - share` of them exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def summary(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, in seconds."""
    return {
        "count": len(values),
        "median": round(percentile(values, 0.5), 3),
        "p99": round(percentile(values, 0.99), 3),
        "max": round(max(values), 3),
    }
