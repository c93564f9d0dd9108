"""The model's checks detect mutants: if any one guard of the protocol is removed, they report a violation."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from mutant_catalogue import MUTANTS
from mutants import detection_of
from tests.draw import draw

# A third of them is run for a commit; all guards are looked up in the source for every commit.
NAMES = [name for name, mutant in MUTANTS.items() if "model" in mutant.by]


@pytest.mark.parametrize("name", MUTANTS)
def test_every_guard_stands_once_in_its_module(name: str) -> None:
    spec = find_spec(MUTANTS[name].module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text(encoding="utf-8").count(MUTANTS[name].guard) == 1


@pytest.mark.parametrize("name", draw("model mutants", NAMES, len(NAMES) // 3))
def test_a_protocol_that_lacks_a_guard_is_detected(name: str) -> None:
    assert detection_of(name, by="model")
