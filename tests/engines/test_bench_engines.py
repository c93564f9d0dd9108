"""The benchmarks of rollout, swaps and publishing run, and their figures are those of what they say."""

from __future__ import annotations

import pytest

from bench import publishing, rollout, swap


def test_the_rollout_worker_beside_bare_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    found = rollout.main(rollout.SMALL)
    assert found["ratio"] == pytest.approx(found["rollout worker"] / found["LLM.generate"])
    assert "LLM.generate" in capsys.readouterr().out


def test_weights_of_a_step_until_their_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    found = swap.main(rollout.SMALL, swaps=1)
    assert list(found) == ["Torch", "vLLM", "HTTP"]
    assert all(0 < times["published"] < times["read"] < times["token"] for times in found.values())
    assert "first token" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["FSDP", "ZeRO-3"])
def test_publishing_divided_weights_takes_the_memory_of_one_tensor(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = publishing.main([backend])[backend]
    assert found["model"] > 9 * found["largest"]
    assert found["peak"] < 1.5 * found["largest"]
    assert backend in capsys.readouterr().out
