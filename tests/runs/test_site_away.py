"""A site whose link is cut is away: the other engines train on, and nobody is taken for dead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.emulated import emulated

from rljob_contract.tiny_models import tiny_model
from runs import LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POOLS = [{"name": "near"}, {"name": "far", "replicas": 2, "site": "west"}]
LINK = "west=delay:20ms,rate:50mbit,cut:40s@15s/120s"


def metrics(run: LiveRun) -> list[dict[str, Any]]:
    file = run.output / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written


@pytest.mark.smoke
def test_others_train_on_while_a_link_is_cut_and_nobody_dies(tmp_path: Path) -> None:
    spec = emulated()
    spec["rollout"] |= {"pools": POOLS, "sampling": {"maxTokens": 12}}
    job = write_job(tmp_path, tiny_model(tmp_path / "model"), steps=100_000, **spec)
    run = LiveRun(job, tmp_path / "run", "--link", LINK)
    try:
        run.until("steps without the site", lambda: sum("sites_away" in m for m in metrics(run)) >= 5)
        run.until("the site again", lambda: "sites_away" not in metrics(run)[-1])
        trained = sum(line.get("trained_at", {}).get("west", 0) for line in metrics(run))
        run.until(
            "what it has generated since is trained",
            lambda: sum(line.get("trained_at", {}).get("west", 0) for line in metrics(run)) > trained,
        )
        run.patch("spec.steps=1")  # it ends once the steps that have begun are trained
        assert run.wait() == 0, run.said + run.logs()
        assert set(metrics(run)[-1]["attempts_failed"]) <= {"SiteAway"}
        site = run.summary()["sites"]["west"]
        assert site["trajectories_trained"] > trained
        assert min(site["bytes_up"], site["bytes_down"], site["tokens_generated"]) > 0
        run.check_audit()
    finally:
        run.stop()
