"""What only the nightly run does: every case of the sweeps, with a fresh seed.

All other runs are the same for every commit: of a sweep the same cases, from fixed seeds. `make nightly` sets the
variable RLJOB_TEST_NIGHT to a seed, which pytest prints in its header; with that value set, a failure is repeated by
the test's name. What a night finds becomes a case of its own, with its seed, beside the sweep.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from tests.second_try import left_out, own_name

Case = TypeVar("Case")

VARIABLE = "RLJOB_TEST_NIGHT"
SEED = os.environ.get(VARIABLE, "")
NIGHT = bool(SEED)


def chance(name: str) -> random.Random:
    """A generator that gives the same numbers for the same name in every process: other ones each night."""
    return random.Random(f"{SEED} {name}")


def some(cases: Sequence[Case], count: int) -> Sequence[Case]:
    """The first `count` cases of a sweep; all of them at night."""
    return cases if NIGHT else cases[:count]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `nightly`, and those that wait to be mended, unless it is night."""
    if NIGHT:
        return
    flaky = left_out()
    left = {item for item in items if item.get_closest_marker("nightly") or own_name(item) in flaky}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
