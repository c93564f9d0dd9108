"""The benchmark of a trainer's step runs, and its figures are those of what it says."""

from __future__ import annotations

import pytest

from bench import trainer


@pytest.mark.filterwarnings("ignore")  # of TRL's own
def test_it_compares_three_steps_on_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    found = trainer.main((32,), groups=1, rounds=1)
    (row,) = found["rows"]
    assert set(row["seconds"]) == set(row["peak_bytes"]) == {"trl", "padded", "packed"}
    assert all(value > 0 for value in row["seconds"].values())
    assert row["ideal"] == pytest.approx(8 * (32 + 160) / (32 + 8 * 160), rel=0.01)
    assert row["of_ideal"] == pytest.approx(row["padded_over_packed"] / row["ideal"])
    assert "TRL/padded" in capsys.readouterr().out
