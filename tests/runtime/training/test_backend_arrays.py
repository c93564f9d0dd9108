"""The base of backends whose weights are arrays; that such a backend keeps the contract is shown by `Emulated`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rljob_core.errors import JobFailed, SpecError, WeightsRejected
from rljob_core.ports import TrainingSample
from rljob_runtime.training.backends.arrays import ArrayBackend


class Steps(ArrayBackend):
    """Counts steps, under names that numpy's own functions have as well."""

    def __init__(self, *, world_size: int = 1) -> None:
        super().__init__(
            {"w": np.zeros(2, np.float32)},
            state={"file": np.zeros(3), "allow_pickle": np.zeros((), np.int64)},
            world_size=world_size,
        )

    def learn(self, sample: TrainingSample) -> tuple[float, int]:
        return 1.0, 1

    def update(self, sequences: int) -> None:
        self.weights["w"] += 1
        self.state["file"] += 2
        self.state["allow_pickle"] += 1


def test_more_ranks_than_one_are_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.trainer\.numProcPerNode: .*has one rank, not 2: set it to 1"):
        Steps(world_size=2)


def test_state_of_any_name_comes_back(tmp_path: Path) -> None:
    backend, other = Steps(), Steps()
    backend.finish_step()
    backend.save(str(tmp_path))
    other.load_state(str(tmp_path))
    assert other.state["file"].tolist() == [2, 2, 2]
    assert other.state["allow_pickle"] == 1
    other.load_state(None)
    assert other.state["allow_pickle"] == 0


def test_a_step_in_place_leaves_the_initial_weights_alone() -> None:
    backend = Steps()
    backend.finish_step()
    backend.load(None)
    assert backend.weights["w"].tolist() == [0, 0]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_damaged_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "state.npz").write_bytes(content)
    with pytest.raises(JobFailed, match=str(tmp_path)):
        Steps().load_state(str(tmp_path))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "state.npz", **{"state.moment": np.zeros(3)})
    with pytest.raises(JobFailed, match="tensor moment: the model has none of that name"):
        Steps().load_state(str(tmp_path))


def test_weights_of_another_shape_are_refused_and_change_nothing() -> None:
    backend = Steps()
    with pytest.raises(WeightsRejected, match=r"tensor w: shape \(3,\), but the model's is \(2,\)"):
        backend.load([("w", np.ones(3, np.float32))])
    assert backend.weights["w"].tolist() == [0, 0]
