"""The port on which workers serve their metrics, and who may connect to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljob_core import worker_protocol
from rljob_operator import names
from rljob_operator.cluster.port import Manifest

PORT_NAME = "metrics"
SCRAPERS = ("prometheus", "alloy", "grafana-agent", "opentelemetry-collector", "vmagent")
"""Names (`app.kubernetes.io/name`) of the pods that may read metrics."""


def expose(container: Manifest, port: int) -> None:
    """Have a worker's container serve its metrics on that port; 0: on none."""
    if port:
        address = {"name": worker_protocol.METRICS_ADDRESS, "value": f":{port}"}
        container["env"] = [*container["env"], address]
        container["ports"] = [{"name": PORT_NAME, "containerPort": port}]


def withdraw_unfit(spec: Manifest, container: str, port: int) -> None:
    """Undo `expose` where, with what templates have added, the API server or the node would refuse the pod.

    A container has one port of a name; and ports of pods in the node's network are the node's, each of one pod's.

    Args:
        spec: of a pod.
        container: name of the worker's.
        port: as for `expose`.
    """
    for ours in spec.get("containers") or [] if port else []:
        ports = ours.get("ports") or []
        named = [found for found in ports if found.get("name") == PORT_NAME]
        if ours["name"] == container and (len(named) > 1 or spec.get("hostNetwork")):
            address = {"name": worker_protocol.METRICS_ADDRESS, "value": f":{port}"}
            ours["env"] = [variable for variable in ours.get("env") or [] if variable != address]
            ours["ports"] = [found for found in ports if found not in named or found["containerPort"] != port]


def port_of(template: Manifest) -> int:
    """The port on which pods of a template serve their metrics; 0 if they serve none."""
    ports = (port for container in template["spec"]["containers"] for port in container.get("ports") or [])
    return next((int(port["containerPort"]) for port in ports if port.get("name") == PORT_NAME), 0)


def scrapers(port: int, namespaces: Sequence[str]) -> list[Manifest]:
    """The rule of a NetworkPolicy that lets scrapers of these namespaces connect to that port; none for 0.

    Args:
        port: as for `expose`.
        namespaces: their names; none: any namespace.
    """
    if not port:
        return []
    selector: dict[str, Any] = {
        "matchExpressions": [{"key": names.LABEL_NAME, "operator": "In", "values": list(SCRAPERS)}]
    }
    where = {"key": names.LABEL_NAMESPACE, "operator": "In", "values": list(namespaces)}
    peer = {
        "namespaceSelector": {"matchExpressions": [where]} if namespaces else {},
        "podSelector": selector,
    }
    return [{"from": [peer], "ports": [{"protocol": "TCP", "port": port}]}]
