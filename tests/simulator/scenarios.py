"""Small scenarios for tests of the simulator."""

from __future__ import annotations

from typing import Any

from rljob_core.config import JobConfig
from rljob_core.emulation import ResponseLengths
from rljob_core.messages import EngineProfile
from rljob_core.spec import RLJobSpec
from rljob_sim import EngineKind, Scenario, TrainerProfile

SHORT = ResponseLengths(median=60, sigma=0.8, prompt_sigma=0.5, min=4, max=400)


def job_config(
    *,
    steps: int = 6,
    prompts: int = 8,
    siblings: int = 4,
    max_tokens: int = 1024,
    weight_sync: str = "Auto",
    **pipeline: Any,
) -> JobConfig:
    """A job whose batches fill the engines of `engine` about once."""
    spec = {
        "steps": steps,
        "model": {"uri": "/model"},
        "data": {"dataset": "chain_sum", "promptsPerStep": prompts, "groupSize": siblings},
        "pipeline": pipeline or {"mode": "BoundedAsync"},
        "rollout": {
            "sampling": {"maxTokens": max_tokens},
            "pools": [{"name": "a"}],
            "weightSync": weight_sync,
        },
        "trainer": {"microBatchTokens": 4000},
    }
    return JobConfig(
        namespace="default",
        job="simulated",
        uid="u1",
        spec=RLJobSpec.model_validate(spec),
        weights_uri="/w",
        checkpoint_uri="/c",
        trainer_log_uri="/t",
    )


def engine(count: int = 2, *, seconds: float = 0.01, name: str = "a", **changes: Any) -> EngineKind:
    """Engines of 16 slots."""
    return EngineKind(name, count, 16, EngineProfile(seconds, 1e-4, 0.0, steps=1), **changes)


def scenario(config: JobConfig | None = None, *engines: EngineKind, **changes: Any) -> Scenario:
    """A scenario that takes about a second of virtual time for a step."""
    values = {
        "trainer": TrainerProfile(1e-4, step_seconds=0.1, publish_seconds=0.05),
        "lengths": SHORT,
        "prompt_tokens": 20,
    }
    return Scenario(config or job_config(), engines or (engine(),), **values | changes)
