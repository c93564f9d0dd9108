"""The example jobs that run on one machine do run: a few steps of each, with a clean audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.night import some

from runs import LiveRun, audit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
SMALLER = ["spec.steps=3", "spec.data.promptsPerStep=8", "spec.data.groupSize=4"]


@dataclass(frozen=True)
class Example:
    """A job of manifests/examples, and what makes a run of it short."""

    name: str
    changes: tuple[str, ...] = ()


SMALL = [
    Example("agent", ("spec.rollout.environment.timeoutSeconds=600", "spec.data.promptsPerStep=2")),
    Example("custom-reward"),
    Example("guessing-game", ("spec.data.promptsPerStep=4",)),
    Example("jsonl-dataset", ("spec.evaluation.everySteps=3", "spec.evaluation.samples=8")),
    Example("lora", ("spec.evaluation.samples=8",)),
    Example("nats-weights", ("spec.weights.delta.anchorEvery=3",)),
    Example("streaming"),
    Example("synchronous"),
    Example("two-ranks"),
    Example("two-sites"),
]
# Examples for a cluster: tests/operator_/test_examples.py has an API server check them.
# `make demo` and e2e/test_kubernetes_docs.py run chain-sum as a whole, test_scaling_by_price.py runs priced-pools.
ELSEWHERE = {
    "autoscaling",
    "chain-sum",
    "deepspeed-7b",
    "deepspeed-nodes",
    "device-claims",
    "http-engine",
    "judge-reward",
    "long-reasoning",
    "lora-7b",
    "object-storage",
    "one-gpu",
    "own-data-and-reward",
    "priced-pools",
    "spot",
    "storage-claim",
    "two-gpu-kinds",
    "two-pools",
    "vllm-gpu",
}


def test_every_example_is_run_or_checked() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == {e.name for e in SMALL} | ELSEWHERE


@pytest.fixture(params=some(SMALL, 2), ids=lambda example: example.name)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, LiveRun]]:
    example = request.param
    settings = [argument for change in (*SMALLER, *example.changes) for argument in ("--set", change)]
    running = LiveRun(EXAMPLES / f"{example.name}.yaml", tmp_path / "run", *settings)
    yield example.name, running
    running.stop()


def test_an_example_trains(run: tuple[str, LiveRun]) -> None:
    name, running = run
    assert running.wait() == 0, running.said[-3000:] + running.logs()
    summary = running.summary()
    assert (summary["steps"], summary["exit"]) == (3, "Succeeded")
    verdict = audit(running.output)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    lines = [json.loads(line) for line in (running.output / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward_mean"] for line in lines if line.get("reward_mean") is not None]
    assert all(0 <= reward <= 1.5 for reward in rewards)
    check = SHOWN.get(name)
    if check is not None:
        check(running.output)


def shows_adapters(output: Path) -> None:
    assert list((output / "checkpoints").glob("*/adapter_config.json"))


def shows_no_weight_files(output: Path) -> None:
    assert not list(output.glob("weights/**/*.safetensors"))


SHOWN: dict[str, Any] = {"lora": shows_adapters, "nats-weights": shows_no_weight_files}
