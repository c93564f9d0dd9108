"""Job configurations and random trajectories, for checks of trainer backends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljob_core.config import JobConfig
from rljob_core.messages import TrainingItem
from rljob_core.ports import TrainingSample
from rljob_core.spec import RLJobSpec
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan, group_of, sibling_of

#: What models say besides right answers.
ANYTHING = (
    "", " ", "\n", "no idea", "0", "-1", "1e999", "nan", "ünïcödé 数 🙂", "\x00\x1b[0m", "}{)(\\frac{", "\ufffd",
    "x " * 5000,
)  # fmt: skip
#: Token ids of the trajectories are below.
VOCABULARY = 50


def job_config(
    model: Path, *, lora: Mapping[str, Any] | None = None, **sections: Mapping[str, Any] | None
) -> JobConfig:
    """A job on a model in that folder.

    Args:
        model: the folder.
        lora: `spec.model.lora`.
        sections: what to lay over sections of the spec, as `algorithm` or `trainer`, and over `rollout.sampling`, as
            `sampling`.
    """
    given = {name: dict(section or {}) for name, section in sections.items()}
    sampling = given.pop("sampling", {})
    spec: dict[str, dict[str, Any]] = {
        "model": {"uri": str(model), "lora": lora},
        "data": {"dataset": "chain_sum"},
        "algorithm": {"learningRate": 1e-3},
        "rollout": {"pools": [{"name": "a"}], "sampling": sampling},
    }
    merged = {name: {**spec.get(name, {}), **given.get(name, {})} for name in spec.keys() | given.keys()}
    return JobConfig(
        namespace="default",
        job="test",
        uid="u",
        spec=RLJobSpec.model_validate({"steps": 10, **merged}),
        weights_uri="weights",
        checkpoint_uri="checkpoints",
        trainer_log_uri="logs",
    )


def segment(
    source: Source, tokens: list[int], *, logprobs: list[float] | None = None, version: int = 0
) -> Segment:
    """A segment of these tokens; those of the model are trained on."""
    model = source is Source.MODEL
    count = len(tokens)
    return Segment(
        source=source,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.full(count, model, np.uint8),
        logprobs=np.array(logprobs if logprobs is not None else [0.0] * count, np.float32),
        versions=np.full(count, version if model else -1, np.int32),
    )


def sample(identifier: str, segments: list[Segment], *, advantage: float, version: int = 0) -> TrainingSample:
    """A trajectory of these segments, whose tokens all come from one version."""
    span = VersionSpan(version, version)
    trajectory = Trajectory(
        id=identifier,
        attempt=1,
        prompt=sibling_of(identifier),
        segments=segments,
        span=span,
        finish=FinishReason.STOP,
        engine="e",
    )
    item = TrainingItem(
        trajectory=identifier,
        attempt=1,
        group=group_of(identifier),
        reward=0.0,
        advantage=advantage,
        span=span,
        tokens=sum(len(s.tokens) for s in segments),
        digest="",
        sequence=1,
        index=0,
    )
    return TrainingSample(item, trajectory)


def random_samples(count: int, *, seed: int = 0) -> list[TrainingSample]:
    """Trajectories, four to a prompt, of any length; every third has an environment's turn in the middle.

    Behaviour log-probabilities lie around a uniform model's, so that ratios lie around 1 on both sides of any clip.
    """
    random = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [int(t) for t in random.integers(1, VOCABULARY, int(random.integers(low, high + 1)))]

    def turn(low: int, high: int) -> Segment:
        chosen = tokens(low, high)
        logprobs = -np.log(VOCABULARY) + random.normal(0, 0.5, len(chosen))
        return segment(Source.MODEL, chosen, logprobs=[float(x) for x in logprobs])

    samples, prompt = [], [0]
    for index in range(count):
        if index % 4 == 0:
            prompt = tokens(1, 9)
        segments = [segment(Source.PROMPT, prompt), turn(1, 24)]
        if index % 3 == 2:
            segments += [segment(Source.ENVIRONMENT, tokens(1, 5)), turn(1, 7)]
        advantage = 0.0 if index % 7 == 6 else float(random.normal())
        samples.append(sample(f"g{index // 4}.{index % 4}", segments, advantage=advantage))
    return samples
