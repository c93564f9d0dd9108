"""The benchmark of the coordinator measures what it says: a small run of it."""

from __future__ import annotations

import pytest
from bench.protocol import SMALL, measure


def test_a_small_run_measures_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(SMALL)
    assert found["core"] > 0
    assert found["few"]["rate"] > 0
    assert found["many"]["cpu_seconds"] > 0
    assert set(found["replay"]) == {"whole", "snapshot"}
    assert len(capsys.readouterr().out.splitlines()) == 6
