"""A link that is too slow for the model's weights is refused, or said to be slow, before training starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJobSpec, SiteLinkSpec
from rljob_runtime.training.anchor_transfer import check_links


def job(folder: Path, link: SiteLinkSpec | None, *, gigabytes: float = 16.0, **changes: Any) -> JobConfig:
    """A job with a pool at a site, and a model whose weights take so much."""
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(int(gigabytes * 1e9))  # no block of it is written
    spec = {
        "steps": 4,
        "model": {"uri": str(folder)},
        "data": {"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 2},
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": 2},
        "rollout": {"pools": [{"name": "near"}, {"name": "far", "site": "west"}]},
        **changes,
    }
    return JobConfig(
        namespace="n",
        job="j",
        uid="u",
        spec=RLJobSpec.model_validate(spec),
        weights_uri="/w",
        checkpoint_uri="/c",
        trainer_log_uri="/t",
        links={} if link is None else {"west": link},
    )


SLOW = SiteLinkSpec(bits_per_second=100_000_000, latency_seconds=0.06)
"""16 GB take 1,422 s of the 90 % that one stream gets."""


def test_a_slow_link_is_said_with_the_numbers(tmp_path: Path) -> None:
    (said,) = check_links(job(tmp_path, SLOW))
    assert "Site west carries 100 Mbit/s: the 16 GB of the model's weights take 1,422 s" in said
    assert "3 steps" in said
    assert "a step takes at least 474 s" in said
    assert "spec.weights.delta" in said


def test_with_deltas_an_anchor_has_until_the_next_one(tmp_path: Path) -> None:
    (said,) = check_links(job(tmp_path, SLOW, weights={"delta": {"anchorEvery": 20}}))
    assert "20 steps until the next anchor" in said
    assert "at least 71 s" in said


@pytest.mark.parametrize(
    ("rate", "changes", "why"),
    [
        (1_000_000, {}, "take 142,222 s, more than a day"),
        (100_000_000, {"activeDeadlineSeconds": 1400}, "take 1,422 s, and activeDeadlineSeconds is 1,400"),
    ],
)
def test_an_anchor_that_never_arrives_is_refused(
    tmp_path: Path, rate: int, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(SpecError, match=why) as error:
        check_links(job(tmp_path, SiteLinkSpec(bits_per_second=rate), **changes))
    assert error.value.path == "spec.rollout.pools[1].site"
    assert "use a faster link" in str(error.value)


@pytest.mark.parametrize(
    ("link", "changes"),
    [
        (None, {}),
        (SiteLinkSpec(), {}),
        (SiteLinkSpec(bits_per_second=10**10), {}),
        (SLOW, {"gigabytes": 0.1}),
        (SLOW, {"trainer": {"backend": "Emulated"}}),
    ],
    ids=["unknown link", "unknown rate", "fast", "small model", "nothing is trained"],
)
def test_what_is_fast_or_not_known_is_not_spoken_of(
    tmp_path: Path, link: SiteLinkSpec | None, changes: dict[str, Any]
) -> None:
    assert check_links(job(tmp_path, link, **changes)) == []
