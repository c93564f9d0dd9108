"""The benchmark of the coordinator runs at its smallest size and measures each of its parts."""

from __future__ import annotations

import pytest

from bench import protocol

pytestmark = pytest.mark.timeout(1800)


def test_a_small_run_measures_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    found = protocol.main(protocol.SMOKE)
    assert found["core"] > 0
    assert found["few"]["rate"] > 0
    assert found["many"]["cpu_seconds"] > 0
    assert set(found["replay"]) == {"whole", "snapshot"}
    assert len(capsys.readouterr().out.splitlines()) == 6
