"""One check says whether tensors are a model's weights: unknown, missing and misshapen ones are named."""

from __future__ import annotations

import numpy as np
import pytest

from rljob_core.errors import WeightsRejected
from rljob_runtime.model.identity import WeightsCheck, check_weights, tied_names

SHAPES = {"embed": (4, 3), "norm": (3,), "head": (4, 3)}
WEIGHTS = {name: np.zeros(shape) for name, shape in SHAPES.items()}


def test_a_models_own_weights_pass_in_any_order() -> None:
    check_weights(dict(reversed(WEIGHTS.items())), SHAPES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**WEIGHTS, "more": np.zeros(1)}, "tensor more: the model has none of that name"),
        ({**WEIGHTS, "norm": np.zeros(4)}, r"tensor norm: shape \(4,\), but the model's is \(3,\)"),
        ({"norm": np.zeros(3)}, "tensor embed: missing, as are 1 others"),
        ({}, "tensor embed: missing, as are 2 others"),
    ],
)
def test_other_weights_are_named(given: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(WeightsRejected, match=message):
        check_weights(given, SHAPES)


def test_tied_weights_may_have_any_of_their_names() -> None:
    shared = np.zeros((4, 3))
    tied = tied_names({"embed": shared, "norm": WEIGHTS["norm"], "head": shared})
    assert tied == {"head": "embed"}
    for name in ("embed", "head"):
        check_weights({name: shared, "norm": WEIGHTS["norm"]}, SHAPES, tied=tied)
    with pytest.raises(WeightsRejected, match=r"tensor embed: missing$"):
        check_weights({"norm": WEIGHTS["norm"]}, SHAPES, tied=tied)


def test_names_that_are_not_required_are_accepted_and_may_be_absent() -> None:
    """A model with adapters takes base weights too, and needs the adapters only."""
    for names in (["head"], ["embed", "head"]):
        check = WeightsCheck(SHAPES, required=["head"])
        for name in names:
            check.add(name, SHAPES[name])
        check.finish()
