"""Simulates jobs with an environment: an episode is trained once, whole, with its own score, and never too stale."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from episodes import GameFaults
from simulation import Mishaps, any_job_of_episodes, check_outcomes, simulate
from tests.night import NIGHT, chance

from rljob_core.config import JobConfig
from rljob_core.ports import Channel

pytestmark = pytest.mark.computes

CHUNK, COVERED = 20, 40
"""The first `COVERED` seeds cover what can go wrong."""
SEEDS = range(COVERED, 1000 if NIGHT else COVERED, CHUNK)
"""Every commit runs the first 40, and 20 others; `make nightly` runs the first 1,000."""
DRAWN = chance("simulated episodes").sample(range(2000, 1_000_000, CHUNK), 1)


@pytest.mark.parametrize("first", [*SEEDS, *DRAWN])
def test_whatever_happens_to_a_job_of_episodes_it_ends_and_the_proof_holds(first: int) -> None:
    check_outcomes(range(first, first + CHUNK), draw=any_job_of_episodes)


@pytest.mark.smoke
def test_the_first_jobs_end_and_the_proof_holds_and_they_cover_what_can_go_wrong() -> None:
    happened = check_outcomes(range(COVERED), draw=any_job_of_episodes)
    for kind in ("raises", "crashes", "closes", "hangs", "invalid", "out of turn", "twice", "refuses"):
        assert happened[f"game {kind}"] > 0, kind
    for reason in ("EnvironmentRaised", "EnvironmentCrashed", "EnvironmentTimeout", "EnvironmentInvalid"):
        assert happened[reason] > 0, reason
    for what in ("EpisodeTimeout", "EnvironmentNotStarted, not its fault", "episodes of several versions"):
        assert happened[what] > 0, what
    for what in ("poisoned game given up", "server of episodes killed", "server of episodes lost"):
        assert happened[what] > 0, what
    for what in ("death rollout", "death coordinator", "drain rollout", "cut", "power cut"):
        assert happened[what] > 0, what


def without_servers(drawn: random.Random) -> tuple[JobConfig, Mishaps, int]:
    """Jobs in which nothing goes wrong but that servers of episodes are killed."""
    config, _, engines = any_job_of_episodes(drawn)
    return config, Mishaps(games=GameFaults(seconds=(0.1, 2.0), lost_servers=6)), engines


def test_of_a_lost_server_only_what_it_had_a_call_of_has_failed() -> None:
    happened = Counter[str]()
    for seed in range(8):
        happened += simulate(seed, draw=without_servers).happened
    assert happened["EnvironmentLost"] > 0
    assert happened["EnvironmentLost, not its fault"] > 0


def test_a_seed_is_one_run() -> None:
    def ledger() -> list[bytes]:
        job = simulate(4, draw=any_job_of_episodes)
        stream = job.server.job(job.config.subject).streams[Channel.LEDGER]
        return [message.data for message in stream.since(1)]

    assert ledger() == ledger()
