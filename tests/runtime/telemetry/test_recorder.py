"""A recorder counts what it is given, in a bounded number of series, and a scrape sees all of it at once."""

from __future__ import annotations

import threading

import pytest

from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.metric import Metric, MetricKind, counter, gauge, histogram
from rljob_runtime.telemetry.recorder import MOST_SERIES, OTHER, Distribution, Recorder, reason_label

TOKENS = counter("rljob_test_tokens_total", "Tokens.")
ENDS = counter("rljob_test_ends_total", "Ends.", "reason")
SECONDS = counter("rljob_test_seconds_total", "Seconds.", "state")
SLOTS = gauge("rljob_test_slots", "Slots.")
STEP = histogram("rljob_test_step_seconds", "Step.", (1.0, 2.0))
ALL = (TOKENS, ENDS, SECONDS, SLOTS, STEP)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def values(recorder: Recorder) -> dict[str, dict[tuple[str, ...], float | Distribution]]:
    return {found.metric.name: dict(found.values) for found in recorder.snapshot()}


def test_counters_and_histograms_without_labels_begin_at_zero_and_nothing_else_is_there() -> None:
    assert values(Recorder(ALL)) == {
        TOKENS.name: {(): 0.0},
        STEP.name: {(): Distribution([0, 0, 0])},
    }


def test_what_is_recorded_is_seen() -> None:
    recorder = Recorder(ALL)
    recorder.add(TOKENS, 3)
    recorder.add(TOKENS)
    recorder.add(ENDS, 2, "Lost")
    recorder.set(SLOTS, 16)
    for seconds in (0.5, 1.0, 1.5, 7.0):
        recorder.observe(STEP, seconds)
    found = values(recorder)
    assert found[TOKENS.name] == {(): 4.0}
    assert found[ENDS.name] == {("Lost",): 2.0}
    assert found[SLOTS.name] == {(): 16.0}
    assert found[STEP.name] == {(): Distribution([2, 1, 1], 10.0)}


def test_a_snapshot_does_not_change() -> None:
    recorder = Recorder(ALL)
    recorder.observe(STEP, 1)
    before = values(recorder)
    recorder.observe(STEP, 1)
    recorder.add(TOKENS)
    assert before[STEP.name] == {(): Distribution([1, 0, 0], 1.0)}
    assert before[TOKENS.name] == {(): 0.0}


def test_a_state_that_lasts_is_counted_until_now() -> None:
    clock = FakeClock()
    recorder = Recorder(ALL, clock)
    recorder.enter(SECONDS, "waiting")
    clock.now += 3
    with recorder.during(SECONDS, "training"):
        clock.now += 5
        assert values(recorder)[SECONDS.name] == {("waiting",): 3.0, ("training",): 5.0}
    clock.now += 2
    assert values(recorder)[SECONDS.name] == {("waiting",): 5.0, ("training",): 5.0}


def test_a_state_ends_with_an_error_too() -> None:
    recorder = Recorder(ALL, FakeClock())
    recorder.enter(SECONDS, "waiting")
    with pytest.raises(ValueError, match="no"), recorder.during(SECONDS, "training"):
        raise ValueError("no")
    assert recorder.enter(SECONDS, "waiting") == "waiting"


def test_further_labels_count_together() -> None:
    recorder = Recorder(ALL)
    for number in range(MOST_SERIES + 10):
        recorder.add(ENDS, 1, f"r{number}")
    found = values(recorder)[ENDS.name]
    assert len(found) == MOST_SERIES + 1
    assert found[OTHER,] == 10
    recorder.replace(ENDS, {(f"r{number}",): 1.0 for number in range(MOST_SERIES + 10)})
    assert values(recorder)[ENDS.name][OTHER,] == 10


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("EngineLost", "EngineLost"),
        ("InvalidOutput: engine x gave 3 tokens", "InvalidOutput"),
        ("", OTHER),
        ("<script>", OTHER),
        ("x" * 4000, "x" * 40),
    ],
)
def test_of_a_reason_the_first_word_is_a_label(reason: str, label: str) -> None:
    assert reason_label(reason) == label


def test_threads_may_record_while_others_look() -> None:
    recorder = Recorder(ALL)

    def work() -> None:
        for _ in range(2000):
            recorder.add(TOKENS)
            recorder.observe(STEP, 1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        (found,) = values(recorder)[STEP.name].values()
        assert isinstance(found, Distribution)
        assert sum(found.counts) == found.sum
    assert values(recorder)[TOKENS.name] == {(): 8000.0}


# ---------------------------------------------------------------------------------------------- definitions


@pytest.mark.parametrize("role", CATALOGUE)
def test_names_say_whose_they_are(role: str) -> None:
    assert [metric.name for metric in CATALOGUE[role] if not metric.name.startswith(f"rljob_{role}_")] == []


def test_every_name_is_defined_once() -> None:
    names = [metric.name for metrics in CATALOGUE.values() for metric in metrics]
    assert len(names) == len(set(names)) > 60


def test_no_label_has_as_many_values_as_there_are_trajectories() -> None:
    labels = {label for metrics in CATALOGUE.values() for metric in metrics for label in metric.labels}
    bounded = {"event", "reason", "state", "ahead", "stage", "stream", "sampling", "end", "result", "pool"}
    bounded |= {"function", "set", "k"}  # each a few: functions, held-out sets, k of pass@k
    assert labels == bounded | {"namespace", "rljob", "verdict"}  # of the audit's file, about one job


@pytest.mark.parametrize(
    ("name", "kind", "buckets"),
    [
        ("rljob_test_tokens", MetricKind.COUNTER, ()),
        ("rljob_test_tokens_total", MetricKind.GAUGE, ()),
        ("rljob_test_step_seconds", MetricKind.HISTOGRAM, ()),
        ("rljob_test_step_seconds", MetricKind.HISTOGRAM, (2.0, 1.0)),
        ("rljob_test_slots", MetricKind.GAUGE, (1.0,)),
        ("rljob", MetricKind.GAUGE, ()),
        ("rljob_test_Slots", MetricKind.GAUGE, ()),
    ],
)
def test_a_name_that_prometheus_would_misread_is_refused(
    name: str, kind: MetricKind, buckets: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=name):
        Metric(name, kind, "Help.", (), buckets)
