"""What every reward does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.night import some

from rljob_contract.check import Check
from rljob_contract.reward import REWARD, RewardSubject
from rljob_contract.samples import job_config

KINDS = some(["exact_match", "verifier", "math_verify"], 1)


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest) -> RewardSubject:
    return RewardSubject(job_config(Path("model"), reward={"functions": [request.param]}))


@pytest.mark.parametrize("check", REWARD, ids=lambda check: check.name)
async def test_contract(check: Check[RewardSubject], subject: RewardSubject) -> None:
    done = check.run(subject)
    assert done is not None
    await done
