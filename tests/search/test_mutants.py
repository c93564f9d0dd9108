"""Model and simulation detect mutants: without any one guard of the protocol, they report an error.

An eighteenth of them is run for a commit.
"""

from __future__ import annotations

import pytest
from mutant_catalogue import MUTANTS
from mutants import detection_of
from tests.draw import draw

OF_MODEL = [name for name, mutant in MUTANTS.items() if "model" in mutant.by]
OF_SIMULATION = [name for name, mutant in MUTANTS.items() if "simulation" in mutant.by]


@pytest.mark.parametrize("name", draw("model mutants", OF_MODEL, len(OF_MODEL) // 18))
def test_a_protocol_that_lacks_a_guard_is_detected(name: str) -> None:
    assert detection_of(name, by="model")


@pytest.mark.parametrize("name", draw("simulated mutants", OF_SIMULATION, len(OF_SIMULATION) // 18))
def test_a_job_that_lacks_a_guard_is_detected(name: str) -> None:
    assert detection_of(name, by="simulation").startswith("seed ")
