"""The checks can fail: with any one guard of the protocol turned off, they find it out."""

from __future__ import annotations

import pytest
from mutant_catalogue import MUTANTS
from mutants import said_of


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if "model" in mutant.by])
def test_a_protocol_with_a_guard_less_is_found_out(name: str) -> None:
    assert said_of(name, by="model")
