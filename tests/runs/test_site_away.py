"""A site whose server stands still is away: the other engines train on, and nobody is taken for dead."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.emulated import emulated

from rljob_contract.tiny_models import tiny_model
from runs import LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POOLS = [{"name": "near"}, {"name": "far", "replicas": 2, "datacenter": "west"}]
SERVER = "nats-server-west-0"


def metrics(run: LiveRun) -> list[dict[str, Any]]:
    file = run.output / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_others_train_on_while_a_site_is_away_and_nobody_dies(tmp_path: Path) -> None:
    spec = emulated()
    spec["rollout"] |= {"pools": POOLS, "sampling": {"maxTokens": 12}}
    run = LiveRun(write_job(tmp_path, tiny_model(tmp_path / "model"), steps=150, **spec), tmp_path / "run")
    try:
        run.until("two steps", lambda: run.steps() >= 2)
        frozen = run.pids()[SERVER]["pid"]
        os.kill(frozen, signal.SIGSTOP)
        run.until("steps without the site", lambda: sum("sites_away" in m for m in metrics(run)) >= 5)
        os.kill(frozen, signal.SIGCONT)
        run.until("the site again", lambda: "sites_away" not in metrics(run)[-1])
        assert run.wait() == 0, run.said + run.logs()
        assert set(metrics(run)[-1]["attempts_failed"]) == {"SiteAway"}
        run.check_audit()
    finally:
        run.stop()
