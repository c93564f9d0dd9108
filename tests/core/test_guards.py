"""Every guard that a mutant turns off stands in the source; tests/search shows that the checks detect the mutants."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from mutant_catalogue import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_every_guard_stands_once_in_its_module(name: str) -> None:
    spec = find_spec(MUTANTS[name].module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text(encoding="utf-8").count(MUTANTS[name].guard) == 1
