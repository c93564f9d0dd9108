"""Prints figures as a table, beside their limits and KubeRay's figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.control_plane.measure import Measurements

#: KubeRay (August 2026), 100 RayClusters of 10 workers until all 1,000 pods run, on such a machine.
KUBERAY = {"seconds": 33.0, "create": 17.0, "megabytes": 84.0, "cpu_seconds": 5.0, "idle_writes": 0.0}

_WHOLE = "kubectl create … all pods Running, status current"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure; `limit` is the greatest value that is accepted, `peer` KubeRay's figure."""

    what: str
    value: float
    unit: str = "s"
    limit: float | None = None
    peer: float | None = None

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.value > self.limit


def rows(phase: str, found: Measurements) -> list[Row]:
    """The rows of a phase."""
    return {"start": _start, "small": _small, "scale": _scale, "change": _change, "idle": _idle, "restart": _restart}[
        phase
    ](found)  # fmt: skip


def show(title: str, lines: Iterable[Row]) -> None:
    """Print the rows under a title."""
    print(f"\n{title}\n{'':52}{'measured':>12}  {'':8}{'at most':>9}{'KubeRay':>9}")
    for row in lines:
        limit = "" if row.limit is None else f"{row.limit:g}"
        peer = "" if row.peer is None else f"{row.peer:g}"
        verdict = "" if row.limit is None else "  MISSED" if row.missed else "  ok"
        print(f"  {row.what:<50}{row.value:>12,.4g}  {row.unit:<8}{limit:>9}{peer:>9}{verdict}", flush=True)


def _start(found: Measurements) -> list[Row]:
    return [
        Row("import of the operator", found["import_seconds"]),
        Row("torch, vllm … that it loads", len(found["heavy_modules"]), "", 0),
        Row("process start → first reconcile, slowest", max(found["first_reconcile_seconds"]), "s", 3),
    ]


def _small(found: Measurements) -> list[Row]:
    idle = found["idle"]
    same = found["jobs"] == 100
    peer = {name: value if same else None for name, value in KUBERAY.items()}
    return [
        Row(_WHOLE, found["seconds"], "s", peer["seconds"], peer["seconds"]),
        Row("kubectl create alone", found["kubectl_create_seconds"], "s", None, peer["create"]),
        Row("operator memory", found["operator_megabytes_highest"], "MB", None, peer["megabytes"]),
        Row("operator CPU", found["operator_cpu_seconds"], "s", None, peer["cpu_seconds"]),
        Row(f"writes in {idle['seconds']:.0f} s of idling", idle["writes"], "", 0, peer["idle_writes"]),
        *_shared(found),
    ]  # fmt: skip


def _scale(found: Measurements) -> list[Row]:
    return [
        Row(_WHOLE, found["seconds"]),
        Row("kubectl create alone", found["kubectl_create_seconds"]),
        Row("operator memory, highest", found["operator_megabytes_highest"], "MB", 300),
        Row("operator CPU", found["operator_cpu_seconds"]),
        *_shared(found),
    ]


def _shared(found: Measurements) -> list[Row]:
    return [
        Row("jobs per second", found["jobs_per_second"], "/s"),
        Row("create → children applied, median", found["create_to_children"]["median"]),
        Row("create → children applied, 99th percentile", found["create_to_children"]["p99"]),
        Row("create → Ready, median", found["create_to_ready"]["median"]),
        Row("create → Ready, 99th percentile", found["create_to_ready"]["p99"]),
        Row("reconciles", found["reconciles_per_second"], "/s"),
        Row("reconciles per job", found["reconciles_per_job"], ""),
        Row("API writes per job", found["writes_per_job"], ""),
        Row("API writes that were refused", found["refused"], ""),
        *_cores(found),
    ]


def _cores(found: Measurements) -> list[Row]:
    all_of = {**found["cores_of"], "others": found["cores_of_others"]}
    return [Row(f"cores of {found['cores']}: {name}", used, "") for name, used in all_of.items()]


def _change(found: Measurements) -> list[Row]:
    return [
        Row("jobs created meanwhile", found["created_per_second"], "/s"),
        Row("change → reconciled, median", found["change_to_reconciled"]["median"]),
        Row("change → reconciled, 99th percentile", found["change_to_reconciled"]["p99"], "s", 2),
        Row("create → children applied, median", found["create_to_children"]["median"]),
        Row("create → children applied, 99th percentile", found["create_to_children"]["p99"]),
        *_cores(found),
    ]


def _idle(found: Measurements) -> list[Row]:
    return [
        Row("API requests per minute", found["requests_per_minute"], ""),
        Row("API writes per minute", found["writes_per_minute"], "", 0),
        Row("operator CPU", found["operator_cpu_percent"], "% of one"),
        Row("operator memory", found["operator_megabytes"], "MB", 300),
    ]


def _restart(found: Measurements) -> list[Row]:
    return [
        Row("process start → ready", found["ready_seconds"]),
        Row("process start → all jobs reconciled", found["all_reconciled_seconds"]),
        Row("API writes", found["writes"], "", 0),
        Row("operator memory, highest", found["operator_megabytes_highest"], "MB", 300),
        Row("operator CPU", found["operator_cpu_seconds"]),
    ]
