"""The benchmarks of rollout, swap and publishing run at their smallest size, and their figures are consistent."""

from __future__ import annotations

import pytest

from bench import publishing, rollout, swap

# vLLM starts within 20 s on an idle machine, and within minutes on a busy one.
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.nightly
def test_rollout_worker_beside_bare_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    found = rollout.main(rollout.SMOKE)
    assert found["ratio"] == pytest.approx(found["rollout worker"] / found["LLM.generate"])
    assert "LLM.generate" in capsys.readouterr().out


@pytest.mark.nightly
def test_swap_measures_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    found = swap.main(swap.SMOKE)
    assert list(found) == ["Torch", "vLLM", "HTTP"]
    assert all(0 < times["published"] < times["read"] < times["token"] for times in found.values())
    assert "first token" in capsys.readouterr().out


def test_publishing_sharded_weights_takes_the_memory_of_one_tensor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = publishing.main(publishing.SMOKE)
    assert list(found) == ["FSDP", "ZeRO-3"]
    for one in found.values():
        assert one["model"] > 9 * one["largest"]
        assert one["peak"] < 1.5 * one["largest"]
    assert "ZeRO-3" in capsys.readouterr().out
