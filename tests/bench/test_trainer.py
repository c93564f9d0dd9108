"""The benchmark of a trainer's step runs at its smallest size, and its ratios follow from its times."""

from __future__ import annotations

import pytest

from bench import trainer

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of TRL's own
def test_it_compares_three_steps_on_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    found = trainer.main(trainer.SMOKE)
    (row,) = found["rows"]
    assert set(row["seconds"]) == set(row["peak_bytes"]) == {"trl", "padded", "packed"}
    assert all(value > 0 for value in row["seconds"].values())
    assert row["ideal"] == pytest.approx(8 * (32 + 160) / (32 + 8 * 160), rel=0.01)
    assert row["of_ideal"] == pytest.approx(row["padded_over_packed"] / row["ideal"])
    assert "TRL/padded" in capsys.readouterr().out
