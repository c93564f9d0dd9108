"""Simulates jobs with random faults that most likely no commit before has simulated (tests/sim: the same for all)."""

from __future__ import annotations

import pytest
from simulation import check_outcomes
from tests.night import chance

CHUNK = 50
DRAWN = chance("simulation").sample(range(2000, 1_000_000, CHUNK), 2)


@pytest.mark.parametrize("first", DRAWN)
def test_whatever_happens_to_a_job_it_ends_and_the_proof_holds(first: int) -> None:
    check_outcomes(range(first, first + CHUNK))
