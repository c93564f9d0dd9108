"""The timeline of a ledger: who was busy when, what died, and what a window of it shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_cli.page.documents.engines import SeenEngines
from rljob_cli.page.documents.ledger_story import LedgerStory
from rljob_cli.page.documents.occupancy import LaneOccupancy
from rljob_cli.page.documents.swaps import SeenSwaps
from rljob_cli.page.documents.timeline import timeline
from rljob_core.failures import Failure, Reason
from rljob_core.messages import EngineSignal, WeightSwap
from rljob_core.records import (
    Dispatched,
    EpochClaimed,
    Evaluated,
    Generated,
    GroupAborted,
    JobFinished,
    MicroBatchAssigned,
    Record,
    RecordBatch,
    Rewarded,
    SiblingReset,
    StepCommitted,
    VersionsRevoked,
    Writer,
)
from rljob_core.trajectory import VersionSpan

FIRST, SECOND = Writer(1_000_001, "one"), Writer(2_000_002, "two")
T0 = 1_700_000_000.0


def told(
    *moments: tuple[float, Record], writer: Writer = FIRST, story: LedgerStory | None = None
) -> LedgerStory:
    story = story or LedgerStory()
    story.add(T0, RecordBatch(writer, (EpochClaimed(writer.number, writer.instance, "uid"),)))
    for after, record in moments:
        story.add(T0 + after, RecordBatch(writer, (record,)))
    return story


def sent(*trajectories: str, engine: str = "rollout-0.a") -> Dispatched:
    return Dispatched(trajectories, (1,) * len(trajectories), engine, 0)


def done(trajectory: str) -> Generated:
    return Generated(trajectory, 1, VersionSpan(0, 0), 9, 5, "d", 2, 0)


def trained(version: int, *trajectories: str) -> StepCommitted:
    return StepCommitted(version, "p", 1, FIRST.number, (trajectories,), 1, "r", "m", "k")


def busy(story: LedgerStory, lane: str, start: float, end: float, parts: int) -> list[float]:
    found = story.rewards if lane == "rewards" else story.engines[lane]
    return found.window(T0 + start, T0 + end, parts)[1]


def test_an_engine_is_busy_from_dispatch_to_payload_and_rewards_until_the_score() -> None:
    story = told(
        (1, sent("g0.0", "g0.1")),
        (2, done("g0.0")),
        (3, done("g0.1")),
        (4, Rewarded("g0.0", 1, 1.0, "d")),
        (5, Rewarded("g0.1", 1, 1.0, "d")),
        (6, JobFinished()),
    )
    assert busy(story, "rollout-0", 0, 6, 6) == [0, 1, 1, 0, 0, 0]
    assert busy(story, "rewards", 0, 6, 6) == [0, 0, 1, 1, 1, 0]
    assert story.engines["rollout-0"].window(T0, T0 + 6, 6)[0] == [0, 2, 1, 0, 0, 0]
    assert [mark.kind for mark in story.marks] == ["coordinator", "end"]


def test_a_death_is_marked_once_and_a_new_process_continues_the_lane() -> None:
    resets = [(2, SiblingReset(f"g0.{i}", 2, "EngineLost", failure=False, died=True)) for i in range(2)]
    story = told((1, sent("g0.0", "g0.1")), *resets, (3, sent("g0.0", engine="rollout-0.b")))
    assert list(story.engines) == ["rollout-0"]
    assert [(mark.kind, mark.lane) for mark in story.marks[1:]] == [
        ("death", "rollout-0"),
        ("start", "rollout-0"),
    ]
    assert busy(story, "rollout-0", 0, 4, 4) == [0, 1, 0, 1]


def test_an_aborted_group_frees_its_engine_and_says_why() -> None:
    story = told((1, sent("g0.0", "g0.1")), (2, GroupAborted("g0", "PromptExhausted", detail="no verifier")))
    assert story.engines["rollout-0"].count == 0
    assert story.marks[-1].text == "group g0 aborted, PromptExhausted: no verifier"


def test_steps_are_from_the_first_micro_batch_to_the_commit() -> None:
    batch = MicroBatchAssigned(0, 0, 1, FIRST.number, ("g0",), last=False)
    story = told(
        (1, batch),
        (2, MicroBatchAssigned(0, 1, 1, FIRST.number, ("g1",), last=True)),
        (4, trained(1, "g0.0", "g0.1", "g1.0")),
    )
    (step,) = story.steps
    assert (step.start - T0, step.end - T0, step.groups, step.trajectories) == (1, 4, 2, 3)
    assert story.training_since is None


def test_what_a_replaced_coordinator_writes_does_not_count() -> None:
    story = told((1, sent("g0.0")))
    told(writer=SECOND, story=story)
    story.add(T0 + 2, RecordBatch(FIRST, (trained(1, "g0.0"),)))
    assert story.steps == []


def test_steps_that_were_revoked_are_gone() -> None:
    story = told(
        (1, trained(1, "g0.0")),
        (2, trained(2, "g1.0")),
        (3, JobFinished(Failure(Reason.UNKNOWN, "x"))),
        (4, VersionsRevoked(1, "k", "m", None, None, 1)),
    )
    assert [step.version for step in story.steps] == [1]
    assert story.finished == ""


def window(story: LedgerStory, **changes: object) -> dict[str, object]:
    arguments = {
        "start": None,
        "end": None,
        "buckets": 10,
        "slots": {},
        "phases": {},
        "publishing": {},
        "swaps": SeenSwaps(),
        "evaluating": {},
    }
    return timeline(story, **{**arguments, **changes})  # type: ignore[arg-type]


def test_a_window_has_the_parts_that_were_asked_for_and_no_more_than_bounds() -> None:
    story = told((1, sent("g0.0")), (2, done("g0.0")), (3, trained(1, "g0.0")), (10, JobFinished()))
    whole = window(story)
    assert (whole["start"], whole["end"], whole["length"]) == (0, 10, 10)
    part = window(story, start=2.5, end=99.0, buckets=10**9)
    assert (part["start"], part["end"], part["buckets"]) == (2.5, 10, 2000)
    assert [lane["name"] for lane in whole["lanes"]] == ["trainer", "rollout-0", "rewards"]  # type: ignore[attr-defined]
    assert window(LedgerStory())["empty"] is True
    assert window(story, start=50.0, end=60.0)["start"] == 0  # a window behind the end shows the whole run


def test_a_step_whose_records_were_stored_together_at_the_end_is_in_the_window() -> None:
    story = told((1, trained(1, "g0.0")), (2, trained(2, "g1.0")))
    assert [step[0] for step in window(story)["steps"]] == [1, 2]  # type: ignore[attr-defined]


def test_where_marks_are_too_many_deaths_stay() -> None:
    aborts = [(1 + i / 1000, GroupAborted(f"g{i}", "PromptExhausted")) for i in range(900)]
    story = told(
        *aborts, (5, sent("g9.0")), (6, SiblingReset("g9.0", 2, "EngineLost", failure=False, died=True))
    )
    shown = window(story)
    assert len(shown["marks"]) == 400  # type: ignore[arg-type]
    assert shown["marks_left_out"] == 502
    assert "death" in [mark[1] for mark in shown["marks"]]  # type: ignore[attr-defined]


def heartbeat(**changes: object) -> EngineSignal:
    fields = {
        "engine": "rollout-0.a",
        "pool": "p",
        "epoch": 1,
        "version": 3,
        "held": 4,
        "slots": 8,
        "running": 0,
        "waiting": 4,
        "tokens": 100,
    }
    return EngineSignal(**{**fields, **changes})  # type: ignore[arg-type]


def test_swaps_are_shown_once_whether_lines_or_heartbeats_or_both_have_said_them() -> None:
    swaps, first = SeenSwaps(), WeightSwap(1, T0 + 2, 0.5)
    swaps.add_line({"rollout-0.a": [{"version": 1, "began": T0 + 2, "seconds": 0.5}, {"version": 9}], "x": 3})
    swaps.add_line(["no mapping"])
    seen = SeenEngines(swaps)
    seen.hear("engine.rollout-0.a", heartbeat(swaps=(first, WeightSwap(2, T0 + 3, 0.25))), T0 + 4)
    story = told((1, sent("g0.0")), (5, done("g0.0")))
    (lane,) = [lane for lane in window(story, swaps=swaps)["lanes"] if lane["kind"] == "engine"]  # type: ignore[attr-defined]
    assert lane["swaps"] == [[1, 2.0, 2.5], [2, 3.0, 3.25]]
    (lane,) = [
        lane
        for lane in window(story, swaps=swaps, start=2.25, end=2.75)["lanes"]  # type: ignore[attr-defined]
        if lane["kind"] == "engine"
    ]
    assert lane["swaps"] == [[1, 2.25, 2.5]]


def test_of_very_many_swaps_the_newest_are_kept_of_each_lane() -> None:
    swaps = SeenSwaps()
    for number in range(10_500):
        swaps.add("rollout-0.a", [WeightSwap(number, T0 + number, 0.5)])
    swaps.add("rollout-1.a", [WeightSwap(1, T0, 0.5)])
    shown = swaps.window("rollout-0", T0, T0 + 20_000, most=20_000)
    assert [version for _, _, version in shown] == list(range(500, 10_500))
    assert swaps.window("rollout-1", T0, T0 + 1, most=10) == [(T0, T0 + 0.5, 1)]


def test_of_a_heartbeat_the_newest_swaps_count_and_what_is_no_number_does_not() -> None:
    swaps = SeenSwaps()
    said = [WeightSwap(version, T0 + version, 0.5) for version in range(1, 9)]
    none = [WeightSwap(9, float("nan"), 0.5), WeightSwap(10, T0 + 10, float("inf"))]
    SeenEngines(swaps).hear("engine.rollout-0.a", heartbeat(swaps=(*said, *none)), T0 + 20)
    assert [version for _, _, version in swaps.window("rollout-0", T0, T0 + 20, most=99)] == [7, 8]


def test_of_too_many_swaps_the_longest_are_shown() -> None:
    swaps = SeenSwaps()
    swaps.add("rollout-0.a", [WeightSwap(n, T0 + n, 0.9 if n % 100 == 0 else 0.01) for n in range(1000)])
    shown = swaps.window("rollout-0", T0, T0 + 1000, most=10)
    assert [version for _, _, version in shown] == list(range(0, 1000, 100))


def test_evaluations_have_a_lane_from_their_start_to_their_last_score() -> None:
    story = told((1, sent("g0.0")), (6, Evaluated(2, 0.5, 0.75, 8)), (9, Evaluated(4, 0.625, 0.75, 8)))
    found = window(story, evaluating={2: 3.5})
    (lane,) = [lane for lane in found["lanes"] if lane["kind"] == "evaluation"]  # type: ignore[attr-defined]
    assert lane["spans"] == [[2, 2.5, 6, 0.5], [4, 9, 9, 0.625]]  # no line says how long the second took
    part = window(story, evaluating={2: 3.5}, start=0.0, end=2.0)
    assert [lane["spans"] for lane in part["lanes"] if lane["kind"] == "evaluation"] == [[]]  # type: ignore[attr-defined]
    story.add(T0 + 10, RecordBatch(FIRST, (VersionsRevoked(2, "k", "m", None, None, 1),)))
    assert [version for version, _, _ in story.evaluations] == [2]


def test_an_engine_that_holds_work_and_runs_none_waits_for_weights() -> None:
    seen = SeenEngines()
    for after, signal in enumerate([heartbeat(), heartbeat(), heartbeat(running=4, waiting=0)]):
        seen.hear("engine.rollout-0.a", signal, T0 + after)
    (phase,) = seen.phases["rollout-0"]
    assert (phase.what, phase.start - T0, phase.end - T0) == ("waiting for weights", 0, 2)
    assert seen.slots == {"rollout-0": 8}
    seen.hear("engine.rollout-0.a", heartbeat(), T0 + 3)
    seen.hear("engine.rollout-0.a", heartbeat(), T0 + 60)  # nobody knows what it did meanwhile
    assert len(seen.phases["rollout-0"]) == 1
    seen.hear("engine.rollout-0.a", None, T0 + 61)
    assert seen.engines == {}


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(-3, 3)), max_size=60),
    st.floats(-10, 110),
    st.floats(0.01, 50),
    st.integers(1, 50),
)
def test_a_window_sums_up_what_every_moment_of_it_was(
    changes: list[tuple[float, int]], start: float, width: float, parts: int
) -> None:
    lane = LaneOccupancy()
    for time, by in sorted(changes, key=lambda change: change[0]):
        lane.change(time, by)
    means, shares = lane.window(start, start + width, parts)
    (mean,), (share,) = lane.window(start, start + width, 1)
    assert sum(means) / parts == pytest.approx(mean, abs=2e-3)
    assert sum(shares) / parts == pytest.approx(share, abs=2e-3)
    assert all(0 <= part <= 1 for part in shares)


def test_a_death_and_the_end_are_marked_however_many_marks_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rljob_cli.page.documents.ledger_story._FREQUENT_KEPT", 5)
    story = told(
        *[(1.0, GroupAborted(f"g{number}", "PromptExhausted")) for number in range(9)],
        (2.0, sent("g20.0")),
        (3.0, SiblingReset("g20.0", 2, "EngineLost", failure=False, died=True)),
        (4.0, JobFinished()),
    )
    kinds = [mark.kind for mark in story.marks]
    assert kinds.count("abort") == 5
    assert kinds[-2:] == ["death", "end"]
    assert story.marks_left_out == 4
