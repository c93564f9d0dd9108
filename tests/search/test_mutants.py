"""Model and simulation detect mutants: without any one guard of the protocol, they report an error.

`make search` tries an eighteenth of them, `make nightly` all.
"""

from __future__ import annotations

import pytest
from mutant_catalogue import MUTANTS
from mutants import detection_of
from tests.night import NIGHT

OF_MODEL = [name for name, mutant in MUTANTS.items() if "model" in mutant.by]
OF_SIMULATION = [name for name, mutant in MUTANTS.items() if "simulation" in mutant.by]


@pytest.mark.parametrize("name", OF_MODEL if NIGHT else OF_MODEL[::18])
def test_a_protocol_that_lacks_a_guard_is_detected(name: str) -> None:
    assert detection_of(name, by="model")


@pytest.mark.parametrize("name", OF_SIMULATION if NIGHT else OF_SIMULATION[::18])
def test_a_job_that_lacks_a_guard_is_detected(name: str) -> None:
    assert detection_of(name, by="simulation").startswith("seed ")
