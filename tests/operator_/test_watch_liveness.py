"""A watch that is dead is found out; one that is only quiet, or cut off with all others, is not."""

from __future__ import annotations

from rljob_operator.decisions.stall import PATIENCE_SECONDS, WatchLiveness

LATE = PATIENCE_SECONDS + 1


def test_a_watch_is_dead_that_does_not_tell_of_what_was_written() -> None:
    guard = WatchLiveness()
    assert guard.silent(1e9) == ""
    guard.wrote("Deployment", 2, 0.0)
    guard.wrote("Job", 2, 50.0)
    assert guard.silent(PATIENCE_SECONDS) == ""
    assert guard.silent(LATE) == "Deployment"
    guard.saw("Deployment", 1)
    assert guard.silent(LATE) == ""
    assert guard.silent(50.0 + LATE) == "Job"


def test_an_event_may_come_before_the_answer_to_the_write() -> None:
    guard = WatchLiveness()
    guard.saw("RLJob", 2)
    guard.wrote("RLJob", 2, 0.0)
    assert guard.silent(LATE) == ""
    guard.wrote("RLJob", 3, 0.0)
    assert guard.silent(LATE) == "RLJob"


def test_more_writes_give_no_more_time() -> None:
    guard = WatchLiveness()
    for second in range(0, 60, 5):
        guard.wrote("Job", 2, float(second))
    assert guard.silent(LATE) == "Job"


def test_any_event_of_a_kind_is_a_sign_of_life_and_of_no_other() -> None:
    guard = WatchLiveness()
    guard.wrote("Job", 2, 0.0)
    guard.saw("Pod", 1)
    assert guard.silent(LATE) == "Job"


def test_an_api_server_that_is_away_is_not_the_watch_s_fault() -> None:
    guard = WatchLiveness()
    guard.wrote("Job", 2, 0.0)
    guard.excuse(50.0)
    assert guard.silent(LATE) == ""
    assert guard.silent(50.0 + LATE) == "Job"
    guard.saw("Job", 1)
    guard.excuse(200.0)
    assert guard.silent(1e9) == ""
