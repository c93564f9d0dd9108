"""The Grafana dashboard of jobs as JSON."""

from __future__ import annotations

from typing import Any

from rljob_cli.generate.dashboard_panels import ROWS, Panel
from rljob_runtime.telemetry.catalogue import CoordinatorMetrics

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        for index, panel in enumerate(row.panels):
            column, line = index % (_COLUMNS // _WIDTH), index // (_COLUMNS // _WIDTH)
            place = {"x": column * _WIDTH, "y": top + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += -(-len(row.panels) // (_COLUMNS // _WIDTH)) * _HEIGHT
    return {
        "uid": "rljob",
        "title": "RLJobs",
        "description": "Jobs of rljob: learning, throughput, where time goes, staleness, failures, stores.",
        "tags": ["rljob"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _variable("namespace", ""), _variable("rljob", "namespace")]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": {"fillOpacity": 40 if panel.stacked else 0, "lineWidth": 1, "stacking": stacking},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": lines}
            for index, (query, lines) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, of: str) -> dict[str, Any]:
    chosen = f'{{{of}=~"${of}"}}' if of else ""
    query = f"label_values({CoordinatorMetrics.STEP.name}{chosen}, {name})"
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }
