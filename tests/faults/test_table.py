"""Checks that every planned kill landed at its boundary. Runs last: it needs the results of the suite's other tests."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from boundaries import BOUNDARIES, ROLES, planned
from kill_locations import PAIR, RANDOM, Landed

LEAST_KILLS = 20
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_the_page_describes_every_boundary() -> None:
    (section,) = re.findall(r"\| boundary \|.*?\n((?:\|.*\n)+)", PAGE.read_text())
    rows = re.findall(r"^\| ([a-z ]+) \| (.*) \|$", section, re.MULTILINE)
    assert rows == [(boundary.name, boundary.description) for boundary in BOUNDARIES]


def test_every_planned_kill_landed(tally: list[Landed]) -> None:
    counts = Counter((one.kill.where, one.kill.role) for one in tally if one.there)
    rows = {**planned(), RANDOM: ROLES, PAIR: ROLES}
    empty = [f"{row}: {role}" for row, roles in rows.items() for role in roles if not counts[row, role]]
    assert not empty
    assert counts.total() >= LEAST_KILLS
