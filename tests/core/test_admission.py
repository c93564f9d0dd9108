"""How much is begun ahead of the trainer, and that nothing of the current step is ever held back."""

from __future__ import annotations

from typing import Any

import pytest
from world import job_config

from rljob_core.job_state import JobState
from rljob_core.planner.admission import Admission
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    EpochClaimed,
    Generated,
    GroupReady,
    GroupReserved,
    Rewarded,
)
from rljob_core.spec import RLJobSpec
from rljob_core.trajectory import VersionSpan, trajectory_id

GROUPS, SIBLINGS = 4, 2


def spec(**pipeline: Any) -> RLJobSpec:
    return job_config(
        steps=9,
        data={"promptsPerStep": GROUPS, "groupSize": SIBLINGS},
        pipeline={"maxStaleness": 2} | pipeline,
    ).spec


def state(*, ready: int, begun: int) -> JobState:
    """Three open buffers of which the first groups are ready, and so many groups after these are being generated."""
    found = JobState()
    found.apply(EpochClaimed(1, "c", "u"))
    for step in range(3):
        found.apply(BufferOpened(step, 2, "BoundedAsync", GROUPS))
        for number in range(GROUPS):
            prompt = step * GROUPS + number
            found.apply(GroupReserved(f"g{prompt}", prompt, SIBLINGS, step, 0))
    for prompt in range(ready + begun):
        ids = tuple(trajectory_id(f"g{prompt}", n) for n in range(SIBLINGS))
        found.apply(Dispatched(ids, (1,) * SIBLINGS, "e", 0, {}))
        for place, name in enumerate(ids if prompt < ready else ()):
            digest = f"{prompt}/{place}"
            found.apply(Generated(name, 1, VersionSpan(0, 0), 20, 10, digest, prompt + 1, place))
            found.apply(Rewarded(name, 1, 1.0, digest))
        if prompt < ready:
            found.apply(GroupReady(f"g{prompt}", prompt // GROUPS, 0))
    return found


def admitted(found: JobState, admission: Admission, **pipeline: Any) -> list[bool]:
    """Of each open buffer, whether something of it may be begun."""
    return [admission.admits(found, spec(**pipeline), buffer) for buffer in found.buffers.buffers.values()]


def starving() -> Admission:
    admission = Admission()
    for step in range(20):
        admission.step_is_whole(10 * step + 9.0)
        admission.committed(10.0 * step + 10)
    assert admission.waits > 0.8
    return admission


@pytest.mark.parametrize("admission", [Admission(), starving()], ids=["well fed", "starving"])
@pytest.mark.parametrize("ready", range(GROUPS + 1))
@pytest.mark.parametrize("begun", range(GROUPS * 2 + 1))
def test_the_current_step_is_never_held_back(admission: Admission, ready: int, begun: int) -> None:
    for window in (0, 0.01, 0.75, 2):
        assert admitted(state(ready=ready, begun=begun), admission, window=window)[0]


def test_three_quarters_of_a_batch_are_begun_ahead_while_the_trainer_has_a_whole_one() -> None:
    for begun in range(GROUPS * 2 + 1):
        ahead = begun * SIBLINGS / (GROUPS * SIBLINGS)
        found = state(ready=GROUPS, begun=begun)
        assert admitted(found, Admission())[1:] == [ahead < 0.75] * 2
        assert admitted(found, starving())[1:] == [ahead < 0.75 * 1.2] * 2


def test_all_that_the_bound_allows_is_begun_while_the_trainer_waits_and_has_waited_long() -> None:
    found = state(ready=GROUPS - 1, begun=6)
    assert admitted(found, starving()) == [True, True, True]
    assert admitted(found, Admission()) == [True, False, False]


def test_a_window_of_zero_holds_nothing_back() -> None:
    assert admitted(state(ready=GROUPS, begun=8), Admission(), window=0) == [True, True, True]


def test_a_trainer_that_is_fed_early_does_not_starve() -> None:
    admission = Admission()
    for step in range(20):
        admission.step_is_whole(10 * step + 1.0)
        admission.committed(10.0 * step + 10)
    assert admission.waits < 0.2


def test_a_clock_that_stands_still_or_goes_back_changes_nothing() -> None:
    admission = Admission()
    for whole, committed in ((5.0, 5.0), (5.0, 5.0), (3.0, 1.0), (9.0, 8.0)):
        admission.step_is_whole(whole)
        admission.committed(committed)
    assert admission.waits == 0.0
