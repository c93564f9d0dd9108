"""Simulates jobs with random faults: each must finish, and no trajectory is lost, trained twice or too stale."""

from __future__ import annotations

import pytest
from simulation import check_outcomes, simulate
from tests.night import NIGHT

from rljob_core.ports import Channel

pytestmark = pytest.mark.computes

CHUNK = 40
COVERED = 60
"""The first `COVERED` seeds cover what can go wrong."""
# Every commit runs the first 100, so that two commits can be compared, and others in tests/search. `make nightly` runs
# the first 2,000 here, and the first 20,000 by `make soak`.
SEEDS = range(COVERED, 2020 if NIGHT else 100, CHUNK)
FOUND = (384,)
"""Seeds beyond the first 100 that have found errors."""


@pytest.mark.parametrize("first", SEEDS)
def test_whatever_happens_to_a_job_it_ends_and_the_proof_holds(first: int) -> None:
    check_outcomes(range(first, first + CHUNK))


@pytest.mark.smoke
@pytest.mark.parametrize("seed", FOUND)
def test_what_has_found_errors_finds_none(seed: int) -> None:
    check_outcomes([seed])


def test_a_seed_is_one_run() -> None:
    def ledger() -> list[bytes]:
        job = simulate(7)
        stream = job.server.job(job.config.subject).streams[Channel.LEDGER]
        return [message.data for message in stream.since(1)]

    assert ledger() == ledger()


@pytest.mark.smoke
def test_the_first_jobs_end_and_the_proof_holds_and_they_cover_what_can_go_wrong() -> None:
    happened = check_outcomes(range(COVERED))
    for what in ("death coordinator", "death trainer", "death rollout", "death reward", "twin coordinator"):
        assert happened[what] > 0
    for what in ("drain rollout", "resumed", "death of poison", "poisonous score", "poison given up"):
        assert happened[what] > 0
    for what in ("death of a hang", "refused by the engine", "empty response", "unsendable"):
        assert happened[what] > 0
    for what in ("refused: its", "refused: engine", "unlearnable named"):
        assert happened[what] > 0
    for what in ("twin trainer", "freeze coordinator", "freeze rollout", "cut", "coordinator Fenced"):
        assert happened[what] > 0
    for what in ("power cut", "bytes of the log lost"):
        assert happened[what] > 0
    for what in ("election", "minority", "server behind"):
        assert happened[what] > 0
    for what in ("stored without an answer", "stored by the next leader", "coordinator StoreUnavailable"):
        assert happened[what] > 0
