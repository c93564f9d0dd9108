"""The demo's job on the engines and backends that others make: its reward rises, and the audit is clean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_processes import vllm_server

from runs import LiveRun, audit

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "manifests" / "examples" / "chain-sum.yaml"
STEPS = 30

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Run = Callable[..., LiveRun]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    runs: list[LiveRun] = []

    def begin(**fields: Any) -> LiveRun:
        settings = {"spec.steps": STEPS, "spec.evaluation": None, "spec.rollout.pools.local.replicas": 1} | {
            f"spec.{path.replace('__', '.')}": value for path, value in fields.items()
        }
        flags = [f"--set={path}={json.dumps(value)}" for path, value in settings.items()]
        runs.append(LiveRun(EXAMPLE, tmp_path / "run", *flags))
        return runs[-1]

    yield begin
    for each in runs:
        each.stop()


def rises(run: LiveRun) -> None:
    """The job ends, its reward is higher than it was, and nothing was lost, trained twice or too stale."""
    assert run.wait(1500) == 0, run.said[-3000:] + run.logs()
    summary = run.summary()
    assert (summary["steps"], summary["exit"]) == (STEPS, "Succeeded")
    assert summary["staleness_max"] <= 2
    lines = map(json.loads, (run.output / "metrics.jsonl").read_text().splitlines())
    rewards = [
        line["reward_mean"] for line in lines if line["reward_mean"] is not None
    ]  # the last tells of the end
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert last > first + 0.1, rewards
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert not run.family()


def test_vllm_and_deepspeed_on_two_ranks(run: Run) -> None:
    rises(
        run(
            rollout__engine={"name": "vLLM", "options": {"slots": 256, "threads": 1}},
            trainer__backend="DeepSpeed",
            trainer__numProcPerNode=2,
            trainer__options={"threads": 1, "zeroStage": 2},
        )
    )


def test_torch_and_fsdp_on_two_ranks(run: Run) -> None:
    rises(
        run(
            trainer__backend="FSDP",
            trainer__numProcPerNode=2,
            trainer__options={"threads": 1},
        )
    )


def test_a_real_completions_server(run: Run, tmp_path: Path) -> None:
    with vllm_server(ROOT / "manifests/examples/models/chain-sum", tmp_path / "server.log", slots=256) as url:
        rises(run(rollout__engine={"name": "HTTP", "options": {"url": url, "slots": 256}}))
