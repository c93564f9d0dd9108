"""Simulates jobs with random faults: each must finish, and no trajectory is lost, trained twice or too stale."""

from __future__ import annotations

import pytest
from simulation import outcome, simulate
from tests.draw import chance, run_all

from rljob_core.ports import Channel

CHUNK = 100
# Of every commit: the same 200 seeds, so that two commits can be compared, and 300 that no commit before had, most
# likely. `make nightly` runs the first 2,000 here, and the first 20,000 by `make soak`.
FIXED = range(0, 2000 if run_all() else 200, CHUNK)
DRAWN = chance("simulation").sample(range(2000, 1_000_000, CHUNK), 3)


@pytest.mark.parametrize("first", [*FIXED, *DRAWN])
def test_whatever_happens_to_a_job_it_ends_and_the_proof_holds(first: int) -> None:
    failed = [(seed, error) for seed, error in map(outcome, range(first, first + CHUNK)) if error]
    replays = "\n".join(f"seed {seed}: {error}\n  replay: make soak SEED={seed}" for seed, error in failed)
    assert not failed, replays


def test_a_seed_is_one_run() -> None:
    def ledger() -> list[bytes]:
        job = simulate(7)
        stream = job.server.job(job.config.subject).streams[Channel.LEDGER]
        return [message.data for message in stream.since(1)]

    assert ledger() == ledger()


def test_the_seeds_cover_what_can_go_wrong() -> None:
    happened = sum((simulate(seed).happened for seed in range(60)), start=type(simulate(0).happened)())
    for what in ("death coordinator", "death trainer", "death rollout", "death reward", "twin coordinator"):
        assert happened[what] > 0
    for what in ("drain rollout", "resumed", "death of poison", "poisonous score", "poison given up"):
        assert happened[what] > 0
    for what in ("twin trainer", "freeze coordinator", "freeze rollout", "cut", "coordinator Fenced"):
        assert happened[what] > 0
