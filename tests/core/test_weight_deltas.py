"""Whether a job's versions are deltas, where its spec does not say."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_core.spec import RLJobSpec

SPEC: dict[str, Any] = {"steps": 1, "model": {"uri": "/m"}, "data": {"dataset": "chain_sum"}}


@pytest.mark.parametrize(
    ("weights", "site", "every"),
    [
        ({}, None, None),
        ({"transport": "Nats"}, None, None),
        ({"transport": "Nats"}, "east", 100),
        ({"transport": "Nats", "delta": {"anchorEvery": 1}}, "east", 1),
        ({"transport": "Nats", "delta": {}}, "east", 10),
        ({"delta": {}}, None, 10),
        ({}, "east", None),  # `rljob run`, where all sites read one folder
    ],
)
def test_versions_are_deltas_where_sites_have_copies(
    weights: dict[str, Any], site: str | None, every: int | None
) -> None:
    pool = {"name": "a"} | ({"site": site} if site else {})
    spec = RLJobSpec.model_validate({**SPEC, "rollout": {"pools": [pool]}, "weights": weights})
    assert spec.anchor_every == every
