"""The trainer says how long it had nothing to train on."""

from __future__ import annotations

from pathlib import Path

from role_jobs import job
from role_tasks import Roles
from tests.waiting import in_time

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.messages import StepMetrics
from rljob_core.spec import RLJobSpec

ANSWER_SECONDS = 0.3


def slow_answers(config: JobConfig) -> JobConfig:
    """The job with answers that take so long, and all of a step in one micro-batch."""
    spec = config.spec.model_dump(mode="json", by_alias=True)
    lengths = {"median": 6, "min": 6, "max": 6}
    spec["rollout"]["engine"]["options"] = {"slots": 6, "stepSeconds": ANSWER_SECONDS / 6, "lengths": lengths}
    return config.model_copy(update={"spec": RLJobSpec.model_validate(spec | {"evaluation": None})})


async def test_it_waits_between_steps_too(tmp_path: Path) -> None:
    """In Synchronous mode nothing of a step is generated before the one before it is committed."""
    model = tiny_model(tmp_path / "model")
    config = slow_answers(
        job(tmp_path, model, micro_batch_tokens=1 << 16, mode="Synchronous", maxStaleness=0)
    )
    lines: list[StepMetrics] = []

    def ended(line: StepMetrics) -> bool:
        if line.reward_mean is not None:
            lines.append(line)
        return bool(line.finished)

    async with Roles(config, model) as roles:
        await in_time(roles.until(ended))
    waited = [line.stats.seconds_waiting for line in lines if line.stats is not None]
    assert len(waited) == 6
    assert min(waited) >= ANSWER_SECONDS / 2  # the trainer begins to wait a little after its proposal
