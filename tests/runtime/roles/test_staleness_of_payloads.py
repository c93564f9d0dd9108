"""The trainer checks the version labels of payloads itself before it trains on them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from rljob_contract.samples import random_samples
from rljob_core.errors import StalenessExceeded
from rljob_core.messages import MicroBatch
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
