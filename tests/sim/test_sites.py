"""Simulates jobs over several sites, whose links are slow or cut: nothing is lost, trained twice or too stale."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from proof import records_of
from simulation import Mishaps, any_job_over_sites, check_outcomes, simulate
from sites import DOWN, UP, Cut, SiteFaults
from tests.night import NIGHT, chance
from world import job_config

from rljob_core.config import JobConfig
from rljob_core.ports import Channel
from rljob_core.records import Dispatched, Generated, SiblingReset

pytestmark = pytest.mark.computes

CHUNK, COVERED = 20, 40
"""The first `COVERED` seeds cover what can go wrong."""
SEEDS = range(COVERED, 2000 if NIGHT else COVERED, CHUNK)
"""Every commit runs the first 40, and 20 others; `make nightly` runs the first 2,000."""
DRAWN = chance("simulated sites").sample(range(2000, 1_000_000, CHUNK), 1)


@pytest.mark.parametrize("first", [*SEEDS, *DRAWN])
def test_whatever_happens_to_a_job_over_sites_it_ends_and_the_proof_holds(first: int) -> None:
    check_outcomes(range(first, first + CHUNK), draw=any_job_over_sites)


@pytest.mark.parametrize("seed", [4, 9, 26])  # whose links also take their time for each byte
def test_a_seed_is_one_run(seed: int) -> None:
    def ledger() -> list[bytes]:
        job = simulate(seed, draw=any_job_over_sites)
        stream = job.server.job(job.config.subject).streams[Channel.LEDGER]
        return [message.data for message in stream.since(1)]

    assert ledger() == ledger()


def without_a_site_for_long(drawn: random.Random) -> tuple[JobConfig, Mishaps, int]:
    """Jobs with engines at sites only; the first is away for longer than its work is kept for it, others less."""
    config, mishaps, _ = any_job_over_sites(drawn)
    sites = tuple(
        replace(
            site, cuts=(Cut(UP, 4.0, seconds), Cut(DOWN, 4.0, seconds)), delay=0.05, weights=0.0, engines=2
        )
        for site, seconds in zip(mishaps.sites, (900.0, 600.0), strict=False)
    )
    return config, Mishaps(sites=sites), 0


def test_what_a_site_had_is_given_to_others_after_its_grace() -> None:
    happened: Counter[str] = sum(
        (simulate(seed, draw=without_a_site_for_long).happened for seed in range(12)), start=Counter()
    )
    assert happened["given to others after the site's grace"] > 0


def cut_three_times(drawn: random.Random) -> tuple[JobConfig, Mishaps, int]:
    """A job with two engines at the hub and two at a site, whose link is cut for 8, 30 and 90 s, and else is slow."""
    cuts = [
        Cut(direction, at, seconds)
        for at, seconds in ((30.0, 8.0), (60.0, 30.0), (130.0, 90.0))
        for direction in (UP, DOWN)
    ]
    site = SiteFaults("east", engines=2, delay=0.03, weights=1.0, cuts=tuple(cuts), rate=20_000.0)
    lengths = {"median": 200.0, "min": 20, "max": 1000, "seed": 3}
    config = job_config(
        steps=40,
        data={"promptsPerStep": 8, "groupSize": 4},
        pipeline={"mode": "BoundedAsync", "maxStaleness": 2},
        trainer={"microBatchTokens": 4000, "checkpoint": {"everySteps": 5}},
        rollout={
            "pools": [{"name": "a"}, {"name": "east", "site": "east"}],
            "progressTokens": 50,
            "engine": {
                "name": "Emulated",
                "options": {"slots": 8, "stepSeconds": 0.05, "lengths": lengths},
            },
        },
    )
    return config, Mishaps(sites=(site,)), 2


def test_cuts_of_8_30_and_90_seconds_have_few_tokens_generated_twice() -> None:
    job = simulate(0, draw=cut_three_times)
    counted: dict[tuple[str, int], int] = {}
    resumed: dict[tuple[str, int], int] = {}
    for _, record in records_of(job):
        if isinstance(record, Generated):
            counted[record.trajectory, record.attempt] = record.response_tokens
        elif isinstance(record, Dispatched):
            resumed |= {(t, i.attempt): i.tokens for t, i in record.inherited.items()}
        elif isinstance(record, SiblingReset):
            assert record.reason == "SiteAway"  # nobody has died, and nothing is lost
    late = {key: tokens for key, tokens in job.sites["east"].payloads.items() if key not in counted}
    twice = sum(tokens - resumed.get(key, 0) for key, tokens in late.items())
    assert late
    assert twice <= 0.03 * sum(counted.values())


@pytest.mark.smoke
def test_the_first_jobs_end_and_the_proof_holds_and_they_cover_what_can_go_wrong() -> None:
    happened = check_outcomes(range(COVERED), draw=any_job_over_sites)
    for what in ("held by a cut up", "held by a cut down", "given to others: SiteAway", "death rollout"):
        assert happened[what] > 0
    for what in ("behind a backlog: trajectories", "behind a backlog: progress", "losses at a site"):
        assert happened[what] > 0
    for what in ("given to others: WeightsAwaited", "death coordinator", "drain rollout", "release"):
        assert happened[what] > 0
