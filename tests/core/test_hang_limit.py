"""An engine's own pauses say for how long it may be silent, unless something is about to take longer than before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_core.hang_limit import (
    EARLY,
    EARLY_LEAST_SECONDS,
    ENOUGH,
    FACTOR,
    FAMILIAR,
    LEAST_SECONDS,
    EngineAtWork,
    HangLimit,
    KnownPauses,
)

MOST = 300
WORK = EngineAtWork(tokens=0, version=3, busy=True, longest=100, total=1000, answered=100)


class Clocked:
    """An engine that is looked at, and the limit that this gives."""

    def __init__(self, limit: HangLimit, work: EngineAtWork = WORK) -> None:
        self.limit, self.work, self.now = limit, work, 1e6
        limit.observe(self.now, work)

    def look(self, after: float = 1.0, *, tokens: int = 0, **changes: int | bool) -> int:
        self.now += after
        self.work = replace(self.work, tokens=self.work.tokens + tokens, **changes)
        self.limit.observe(self.now, self.work)
        return self.limit.seconds

    def generate(self, seconds: int, *, pause: float = 1.0) -> int:
        """Make a token every `pause` seconds."""
        return [self.look(pause, tokens=1) for _ in range(seconds)][-1]


def warm() -> Clocked:
    engine = Clocked(HangLimit(MOST))
    engine.generate(ENOUGH + 1)
    return engine


def test_the_limit_is_hang_seconds_until_something_was_seen_and_wide_until_enough_was() -> None:
    engine = Clocked(HangLimit(MOST))
    assert engine.generate(EARLY - 1) == MOST
    assert engine.generate(1) == EARLY_LEAST_SECONDS
    assert engine.generate(ENOUGH - EARLY - 1) == EARLY_LEAST_SECONDS
    assert engine.generate(2) == LEAST_SECONDS


def test_what_takes_long_at_first_widens_it_at_first() -> None:
    engine = Clocked(HangLimit(MOST))
    engine.look(9.0, tokens=1)
    assert engine.generate(EARLY) == FACTOR * 9 + 1
    assert engine.look(swapping=True) == MOST
    engine.look(swapping=False, tokens=1)
    assert engine.look(longest=FAMILIAR * WORK.longest + 1) == MOST


def test_what_has_nothing_but_quarantined_work_may_be_silent_for_half_as_long_and_no_less_than_its_pauses_allow() -> (
    None
):
    engine = warm()
    assert engine.look(quarantined=True) == FACTOR + 1
    assert engine.look(quarantined=False) == LEAST_SECONDS
    engine.look(tokens=1)
    assert engine.look(quarantined=True) == FACTOR * 3 + 1
    early = Clocked(HangLimit(MOST))
    early.generate(EARLY)
    assert early.look(quarantined=True) == EARLY_LEAST_SECONDS // 2
    found = early.limit.for_successor()
    assert found is not None
    assert (
        Clocked(HangLimit(MOST, found), replace(WORK, quarantined=True)).limit.seconds
        == EARLY_LEAST_SECONDS // 2
    )


def test_it_never_exceeds_hang_seconds() -> None:
    engine = Clocked(HangLimit(7))
    assert engine.generate(ENOUGH + 5) == 7


def test_pauses_widen_it_for_half_an_hour_of_work() -> None:
    engine = warm()
    engine.look(6.0, tokens=1)
    assert engine.generate(29 * 60) == FACTOR * 6 + 1
    assert engine.generate(2 * 60) == LEAST_SECONDS


def test_how_long_it_compiles_at_first_is_no_pause_of_later_work_but_of_its_successor() -> None:
    engine = Clocked(HangLimit(MOST))
    engine.look(12.0, tokens=1)
    assert engine.generate(ENOUGH) == LEAST_SECONDS
    known = engine.limit.for_successor()
    assert known is not None
    assert known.seconds == FACTOR * 12 + 1
    assert Clocked(HangLimit(MOST, known)).limit.seconds == known.seconds


def test_time_without_work_is_no_pause() -> None:
    engine = warm()
    assert engine.look(busy=False) == MOST, "nobody waits for it"
    engine.look(1000.0, busy=True)
    assert engine.look(tokens=1) == LEAST_SECONDS


@pytest.mark.parametrize("size", ["longest", "total"])
def test_prompts_longer_than_those_it_knows_may_take_their_time(size: str) -> None:
    engine = warm()
    before = getattr(WORK, size)
    assert engine.look(**{size: FAMILIAR * before}) == LEAST_SECONDS
    assert engine.look(**{size: FAMILIAR * before + 1}) == MOST
    engine.look(9.0, tokens=1, answered=engine.work.longest)
    assert engine.generate(1) == FACTOR * 11 + 1, "it is known now, and so is how long it took"


def test_what_was_long_ago_is_known_no_more() -> None:
    engine = warm()
    engine.look(tokens=1, answered=500)
    engine.work = replace(engine.work, answered=100)
    assert engine.look(longest=1000) == LEAST_SECONDS
    engine.look(longest=100)
    engine.generate(32 * 60)
    assert engine.look(longest=1000) == MOST


def test_a_swap_may_take_its_time_until_two_were_seen_at_work() -> None:
    engine = warm()
    for version in (4, 5):
        assert engine.look(swapping=True) == MOST
        assert engine.look(swapping=False, version=version) == MOST, "its caches are not computed yet"
        assert engine.look(tokens=1) == FACTOR * 3 + 1
    assert engine.look(swapping=True) == FACTOR * 3 + 1


def test_a_swap_of_an_idle_engine_does_not_count() -> None:
    engine = warm()
    for version in (4, 5):
        engine.look(busy=False, swapping=True)
        engine.look(version=version, swapping=False)
        engine.look(busy=True)
        engine.look(tokens=1)
    assert engine.look(swapping=True) == MOST


def test_each_process_that_ends_before_enough_was_seen_gives_the_next_one_twice_as_long() -> None:
    known = KnownPauses(seconds=LEAST_SECONDS, longest=100, total=1000, swaps=2)
    limits = []
    for _ in range(5):
        engine = Clocked(HangLimit(MOST, known))
        engine.generate(5)
        limits.append(engine.limit.seconds)
        found = engine.limit.for_successor()
        assert found is not None
        known = found
    assert limits == [20, 40, 80, 160, MOST]


def test_one_of_which_nothing_is_known_leaves_nothing() -> None:
    engine = Clocked(HangLimit(MOST))
    engine.generate(EARLY - 1)
    assert engine.limit.for_successor() is None
    engine.generate(1)
    assert engine.limit.for_successor() is not None
