"""Kills (kill -9) each role at every boundary of a step: the ledger shows where the kill landed; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from boundaries import BOUNDARIES, Boundary, planned
from faulty_run import FaultyRun
from kill_locations import epochs
from tests.emulated import emulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PAIRS = [BOUNDARIES[first : first + 2] for first in range(0, len(BOUNDARIES), 2)]


@pytest.mark.parametrize(
    "boundaries",
    [*(pytest.param(pair, marks=pytest.mark.smoke) for pair in PAIRS[:2]), *PAIRS[2:]],
    ids=lambda boundaries: "+".join(boundary.name.replace(" ", "-") for boundary in boundaries),
)
def test_each_role_at_each_boundary(
    start: Callable[..., FaultyRun], boundaries: tuple[Boundary, ...]
) -> None:
    kills = [(boundary, role) for boundary in boundaries for role in planned()[boundary.name]]
    run = start(" and ".join(boundary.name for boundary in boundaries), steps=8 * len(kills), **emulated())
    run.watch()
    for boundary, role in kills:
        run.hit(boundary, role)
    ledger = run.finish()
    missed = [str(landed) for landed in run.landed if not landed.there]
    assert not missed, "\n".join(missed)
    coordinators = sum(role == "coordinator" for _, role in kills)
    assert epochs(ledger) == 1 + coordinators, "a coordinator was not replaced, or one was that need not be"
