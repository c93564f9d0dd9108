"""The simulation detects mutants: if any one guard of the protocol or its roles is removed, some seed's job fails."""

from __future__ import annotations

import pytest
from mutant_catalogue import MUTANTS
from mutants import detection_of
from tests.draw import draw

# That every guard is still in the source is checked for all of them, by `tests/core/test_mutants.py`. A third of them
# is run for a commit.
NAMES = [name for name, mutant in MUTANTS.items() if "simulation" in mutant.by]


@pytest.mark.parametrize("name", draw("simulated mutants", NAMES, len(NAMES) // 3))
def test_a_job_that_lacks_a_guard_is_detected(name: str) -> None:
    assert detection_of(name, by="simulation").startswith("seed ")
