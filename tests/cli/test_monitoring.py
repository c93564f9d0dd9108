"""The dashboard and the alert rules name metrics that exist, fire when they should, and are as the code has them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from ruamel.yaml import YAML
from tests.prometheus_server import program
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_cli.generate.alerts import ALERTS, rules
from rljob_cli.generate.commands import COMPONENT, PAGE
from rljob_cli.generate.dashboard import dashboard
from rljob_operator.telemetry import OperatorMetrics
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.metric import MetricKind

CHECKOUT = Path(__file__).parents[2]
VLLM = {
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:num_preemptions_total",
}
"""Of vLLM's metrics, those on the dashboard; tests/engines/test_vllm_internals.py finds them there."""


OPERATOR_LABELS = {"rljob_operator_job_failed": ("reason",)}


def queries() -> list[str]:
    """Those of the dashboard's panels."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def known() -> dict[str, set[str]]:
    """The labels of every series that a query may name, by the series' name."""
    of_target = {"namespace", "rljob", "role", "pool", "pod"}
    found: dict[str, set[str]] = {name: {*of_target} for name in VLLM}
    for family in REGISTRY.collect():
        found |= {sample.name: {*of_target} for sample in family.samples}
    for operators in OperatorMetrics().registry.collect():
        # Of a metric with labels, nothing is collected before it has values.
        found[operators.name] = {*of_target, *OPERATOR_LABELS.get(operators.name, ())}
    for metrics in CATALOGUE.values():
        for metric in metrics:
            ends = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
            labels = {*of_target, *metric.labels, *({"le"} if metric.kind is MetricKind.HISTOGRAM else ())}
            found |= {metric.name + end: labels for end in ends}
    return found


def named(query: str) -> list[str]:
    return re.findall(r"(?<![\w:$\"{])(?:rljob_|process_|python_|vllm:)[\w:]+", query)


def labels_in(query: str) -> Iterable[str]:
    for chosen in re.findall(r"\{([^}]*)\}", query):
        yield from re.findall(r"(\w+)(?:=~|=|!=)", chosen)
    for words in re.findall(r"\b(?:by|ignoring|on) ?\(([^)]*)\)", query):
        yield from re.findall(r"\w+", words)


@pytest.mark.parametrize("query", [*queries(), *(alert.query for alert in ALERTS)])
def test_every_query_names_metrics_and_labels_that_exist(query: str) -> None:
    found = known()
    metrics = named(query)
    assert metrics
    assert [name for name in metrics if name not in found] == []
    allowed = set().union(*(found[name] for name in metrics))
    assert set(labels_in(query)) - allowed == set()


def test_the_page_has_every_alert() -> None:
    page = (CHECKOUT / PAGE).read_text()
    assert re.findall(r"^\| `(RLJob\w+)` \|", page, re.MULTILINE) == [alert.name for alert in ALERTS]


def test_files_are_up_to_date_and_a_changed_one_is_seen(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / COMPONENT, tmp_path / "files")
    shutil.copy(CHECKOUT / PAGE, tmp_path / "page.md")
    check = [
        "monitoring",
        "--check",
        "--output",
        str(tmp_path / "files"),
        "--page",
        str(tmp_path / "page.md"),
    ]
    assert CliRunner().invoke(app, check).exit_code == 0
    for file in ("files/dashboard.json", "files/prometheus-rule.yaml", "files/rules.yaml", "page.md"):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(
            text.replace("rljob_trainer_kl", "rljob_trainer_lk").replace("10m", "20m")
        )
        result = CliRunner().invoke(app, check)
        assert result.exit_code == 1
        assert "make crds" in result.output
        (tmp_path / file).write_text(text)
    (tmp_path / "page.md").unlink()
    assert CliRunner().invoke(app, check).exit_code == 1


# ---------------------------------------------------------------------------------------------- by promtool

JOB = 'namespace="ns", rljob="job"'
RUNNING = {f"rljob_coordinator_running{{{JOB}, pod='c'}}": "1+0x120"}
WRONG: dict[str, dict[str, str]] = {
    "RLJobTrainerStarved": {
        f'rljob_coordinator_starved_seconds_total{{{JOB}, pod="c", stage="trainer"}}': "0+40x120"
    },
    "RLJobRolloutStarved": {
        f'rljob_coordinator_starved_seconds_total{{{JOB}, pod="c", stage="rollout"}}': "0+40x120"
    },
    "RLJobStalled": {f'rljob_rollout_tokens_total{{{JOB}, pod="e"}}': "7+0x120"},
    "RLJobNoProgress": {f'rljob_coordinator_commit_timestamp_seconds{{{JOB}, pod="c"}}': "0+0x120"},
    "RLJobFailed": {f'rljob_coordinator_failed{{{JOB}, pod="c"}}': "1+0x120"},
    "RLJobStoreNearlyFull": {
        f'rljob_coordinator_stream_bytes{{{JOB}, pod="c", stream="rewards"}}': "95+0x120",
        f'rljob_coordinator_stream_limit_bytes{{{JOB}, pod="c", stream="rewards"}}': "100+0x120",
    },
    "RLJobWeightsNotLoaded": {
        f'rljob_rollout_weights_failures_total{{{JOB}, pod="e", reason="WeightsRejected"}}': "0+1x120"
    },
    "RLJobAttemptsFail": {
        f'rljob_coordinator_failed_attempts_total{{{JOB}, pod="c", reason="EngineLost"}}': "0+3x120",
        f'rljob_coordinator_trajectories_total{{{JOB}, pod="c", event="generated"}}': "0+10x120",
    },
    "RLJobSiteAway": {f'rljob_coordinator_sites_away{{{JOB}, pod="c"}}': "1+0x120"},
    "RLJobAuditViolated": {f'rljob_audit_violations{{{JOB}, verdict="violated"}}': "1+0x120"},
}
"""Series, by a minute, under which each alert and no other fires."""
WELL = {
    f'rljob_coordinator_starved_seconds_total{{{JOB}, pod="c", stage="trainer"}}': "0+20x120",
    f'rljob_coordinator_starved_seconds_total{{{JOB}, pod="c", stage="reward"}}': "0+60x120",
    f'rljob_rollout_tokens_total{{{JOB}, pod="e"}}': "0+1x120",
    f'rljob_coordinator_commit_timestamp_seconds{{{JOB}, pod="c"}}': "0+60x120",
    f'rljob_coordinator_failed{{{JOB}, pod="c"}}': "0+0x120",
    f'rljob_coordinator_stream_bytes{{{JOB}, pod="c", stream="rewards"}}': "85+0x120",
    f'rljob_coordinator_stream_limit_bytes{{{JOB}, pod="c", stream="rewards"}}': "100+0x120",
    f'rljob_coordinator_failed_attempts_total{{{JOB}, pod="c", reason="EngineLost"}}': "0+1x120",
    f'rljob_coordinator_trajectories_total{{{JOB}, pod="c", event="generated"}}': "0+10x120",
    f'rljob_audit_violations{{{JOB}, verdict="violated"}}': "0+0x120",
    f'rljob_audit_violations{{{JOB}, verdict="unfinished"}}': "3+0x120",
}
"""A job that is well: its trainer waits for a third of the time."""


def dump(path: Path, value: Any) -> Path:
    with path.open("w") as file:
        YAML(typ="safe").dump(value, file)
    return path


def test_each_alert_fires_for_what_it_is_about_and_for_nothing_else(tmp_path: Path) -> None:
    tool = program("promtool")
    dump(tmp_path / "rules.yaml", rules())
    assert WRONG.keys() == {alert.name for alert in ALERTS}
    cases = {"": WELL, **WRONG}
    tests = [
        {
            "interval": "1m",
            "name": firing or "well",
            "input_series": [{"series": s, "values": v} for s, v in {**RUNNING, **series}.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "90m",
                    "exp_samples": [{"labels": f'{{alertname="{firing}"}}', "value": 1}] if firing else [],
                }
            ],
        }
        for firing, series in cases.items()
    ]
    file = dump(
        tmp_path / "test.yaml", {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    )
    subprocess.run([tool, "check", "rules", str(tmp_path / "rules.yaml")], check=True, timeout=600)
    done = subprocess.run(
        [tool, "test", "rules", str(file)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_that_only_the_operator_knows_to_have_failed_is_alerted_once(tmp_path: Path) -> None:
    tool = program("promtool")
    dump(tmp_path / "rules.yaml", rules())
    series = {
        f'rljob_operator_job_failed{{{JOB}, reason="BackoffLimitExceeded"}}': "1+0x120",
        f'rljob_coordinator_failed{{{JOB}, pod="c"}}': "1+0x60 _x60",  # its pod is deleted
        'rljob_coordinator_failed{namespace="ns", rljob="other", pod="d"}': "0+0x120",
    }
    expected = {"labels": '{__name__="ALERTS", alertname="RLJobFailed", alertstate="firing", ' + JOB}
    expected = {"labels": expected["labels"] + ', severity="critical"}', "value": 1}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": "ALERTS", "eval_time": at, "exp_samples": [expected]} for at in ("30m", "90m")
        ],
    }
    file = dump(
        tmp_path / "test.yaml", {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    )
    done = subprocess.run(
        [tool, "test", "rules", str(file)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_about_a_running_job_ends_with_the_job(tmp_path: Path) -> None:
    tool = program("promtool")
    dump(tmp_path / "rules.yaml", rules())
    ended = {f"rljob_coordinator_running{{{JOB}, pod='c'}}": "0+0x120"}
    running = (
        "RLJobTrainerStarved",
        "RLJobRolloutStarved",
        "RLJobStalled",
        "RLJobNoProgress",
        "RLJobAttemptsFail",
    )
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in {**ended, **WRONG[name]}.items()],
            "promql_expr_test": [{"expr": "ALERTS", "eval_time": "90m", "exp_samples": []}],
        }
        for name in running
    ]
    file = dump(
        tmp_path / "test.yaml", {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    )
    done = subprocess.run(
        [tool, "test", "rules", str(file)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
