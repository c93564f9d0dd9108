"""The trainer checks the version labels of payloads itself before it trains on them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from role_jobs import job, ledger
from role_tasks import Roles
from tests.waiting import in_time

from rljob_contract.samples import random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import StalenessExceeded
from rljob_core.messages import MicroBatch
from rljob_core.planner import training
from rljob_core.records import StepCommitted
from rljob_core.trajectory import VersionSpan
from rljob_runtime.roles.trainer.micro_batches import check_staleness

STEP, BOUND = 5, 2


@pytest.mark.parametrize(
    ("labels", "refusal"),
    [
        ((3, 5), ""),
        ((2, 5), "staleness 3 exceeds the bound 2"),
        ((5, 6), "versions 5 to 6"),
        ((50, 50), "versions 50 to 50"),
        ((-1, 5), "versions -1 to 5"),
    ],
)
def test_a_step_takes_only_versions_that_exist_and_are_within_its_bound(
    labels: tuple[int, int], refusal: str
) -> None:
    (sample,) = random_samples(1)
    trajectory = replace(sample.trajectory, span=VersionSpan(*labels))
    samples = [replace(sample, trajectory=trajectory)]
    work = MicroBatch(
        attempt=1, epoch=1, resume=1, step=STEP, micro_batch=0, last=True, max_staleness=BOUND, items=()
    )
    with pytest.raises(StalenessExceeded, match=refusal) if refusal else nullcontext():
        check_staleness(work, samples)


async def test_a_trainer_ends_whose_coordinator_sends_what_is_past_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first step, whose tokens are as new as they can be, under a bound that nothing satisfies."""
    message = training._message
    monkeypatch.setattr(training, "_message", lambda *given: replace(message(*given), max_staleness=-1))
    model = tiny_model(tmp_path / "model")
    async with Roles(job(tmp_path, model), model) as roles:
        with pytest.raises(StalenessExceeded, match="staleness 0 exceeds the bound -1"):
            await in_time(roles.tasks["trainer"])
        assert not [r for r in await ledger(roles.store) if isinstance(r, StepCommitted)]
