"""The simulation can fail: with any one guard of the protocol or its roles turned off, some seed finds it out."""

from __future__ import annotations

import pytest
from mutant_catalogue import MUTANTS
from mutants import said_of


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if "simulation" in mutant.by])
def test_a_job_with_a_guard_less_is_found_out(name: str) -> None:
    assert said_of(name, by="simulation").startswith("seed ")
