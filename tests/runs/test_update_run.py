"""A real `inflight: Update` run, token by token: each log-probability is that of the version recorded for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from role_tasks import Roles
from tests.waiting import in_time

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.spec import RLJobSpec
from rljob_core.trajectory import Source, Trajectory
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.weights.create import open_store

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]
TOLERANCE = 1e-4


def job(tmp_path: Path, model: Path) -> JobConfig:
    return JobConfig(
        namespace="default",
        job="update",
        uid="u1",
        spec=RLJobSpec.model_validate(
            {
                "steps": 10,
                "model": {"uri": str(model)},
                "data": {"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 4},
                "algorithm": {"learningRate": 1e-2},
                "pipeline": {"mode": "BoundedAsync", "maxStaleness": 3, "inflight": "Update"},
                # Random, so that advantages are not zero and weights change at every step.
                "reward": {"functions": ["rewards_for_tests:parity"]},
                "rollout": {
                    "engine": {"name": "Torch", "options": {"slots": 8, "threads": 1}},
                    "sampling": {"maxTokens": 96},
                    "pools": [{"name": "a"}],
                },
                "trainer": {"microBatchTokens": 500, "options": {"threads": 1}},
                "weights": {"keepVersions": 100},
            }
        ),
        weights_uri=str(tmp_path / "weights"),
        checkpoint_uri=str(tmp_path / "checkpoints"),
        trainer_log_uri=str(tmp_path / "trainer"),
    )


async def collect(roles: Roles, found: list[Trajectory]) -> None:
    queue = await TrajectoryStore(roles.connect()).queue("witness")
    while True:
        for delivery in await queue.fetch(messages=64, max_bytes=1 << 22, timeout=1.0):
            found.extend(delivery.trajectories)
            await delivery.ack()


def recompute(models: dict[int, object], trajectory: Trajectory, shift: int = 0) -> np.ndarray:
    """Log-probabilities of the model's tokens, each under the weights of its recorded version (+ shift)."""
    import torch

    prompt, made = trajectory.segments
    assert (prompt.source, made.source) == (Source.PROMPT, Source.MODEL)
    tokens = torch.tensor(np.concatenate([prompt.tokens, made.tokens]).astype(np.int64))[None]
    logprobs = np.zeros(len(made.tokens), np.float32)
    for version in sorted(set(made.versions.tolist())):
        with torch.no_grad():
            logits = models[version + shift](tokens).logits[0, len(prompt.tokens) - 1 : -1]
        all_of = torch.log_softmax(logits.float(), -1)
        picked = all_of[torch.arange(len(made.tokens)), tokens[0, len(prompt.tokens) :]].numpy()
        mine = np.asarray(made.versions) == version
        logprobs[mine] = picked[mine]
    return logprobs


async def test_every_token_s_log_probability_is_that_of_its_version(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path / "model")
    config = job(tmp_path, folder)
    found: list[Trajectory] = []
    roles = Roles(config, folder)
    await roles.store.open()
    witness = asyncio.create_task(collect(roles, found))
    async with roles:
        line = await in_time(roles.until(lambda m: m.finished))
        assert line.finished == "Succeeded"
    witness.cancel()
    weights = open_store("Files", uri=config.weights_uri)
    models = {0: AutoModelForCausalLM.from_pretrained(folder).eval()}
    for manifest in weights.manifests():
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        model.load_state_dict(dict(weights.read(manifest)), strict=False)
        models[manifest.version] = model
    assert sorted(models) == list(range(11))
    crossing = [t for t in found if t.span.min != t.span.max]
    assert len(found) >= 8
    assert crossing, "no trajectory was running while weights were swapped"
    worst = max(float(np.abs(recompute(models, t) - np.asarray(t.segments[1].logprobs)).max()) for t in found)
    assert worst <= TOLERANCE
    # The same comparison with the neighbouring version fails: it can tell versions apart.
    older = [t for t in crossing if t.span.min >= 1]
    wrong = max(
        float(np.abs(recompute(models, t, shift=-1) - np.asarray(t.segments[1].logprobs)).max())
        for t in older
    )
    assert wrong > 10 * TOLERANCE
