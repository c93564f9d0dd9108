"""Chooses which cases of a long sweep this commit runs, and the seeds of random tests: all from one seed.

The seed is the variable RLJOB_TEST_SEED, or else the hash of the commit that is checked out. The same commit always
chooses the same cases, and other commits choose others, so that the whole sweep is run over some commits. pytest prints
the seed in its header; to repeat a failure on another commit, set RLJOB_TEST_SEED to it. With RLJOB_TEST_ALL=1, as
`make nightly` sets it, every case runs.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

Case = TypeVar("Case")

SEED, ALL = "RLJOB_TEST_SEED", "RLJOB_TEST_ALL"


@cache
def seed() -> str:
    """The seed of all choices."""
    if chosen := os.environ.get(SEED):
        return chosen
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"  # an archive of the sources has no history


def run_all() -> bool:
    """Whether every case runs."""
    return os.environ.get(ALL, "") not in {"", "0"}


def chance(name: str) -> random.Random:
    """A generator that gives the same numbers for the same seed and name, in every process."""
    return random.Random(f"{seed()} {name}")


def draw(name: str, cases: Sequence[Case], count: int) -> list[Case]:
    """`count` of the cases, in their order; all of them where every case runs.

    Args:
        name: of the sweep; sweeps of different names choose independently.
        cases: in an order that is the same in every process.
        count: how many a commit runs.
    """
    if run_all():
        return list(cases)
    chosen = chance(name).sample(range(len(cases)), count)
    return [cases[place] for place in sorted(chosen)]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of what pytest has collected, leave out what a commit does not run.

    That are the tests marked `nightly`, and of those marked `drawn(sweep, count)` all but `count` of each sweep.
    """
    if run_all():
        return
    sweeps: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if (marker := item.get_closest_marker("drawn")) is not None:
            sweeps.setdefault(marker.args, []).append(item)
    left = {item for item in items if item.get_closest_marker("nightly")}
    for (sweep, count), cases in sweeps.items():
        cases.sort(key=lambda item: item.nodeid)
        left |= set(cases).difference(draw(sweep, cases, min(count, len(cases))))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
