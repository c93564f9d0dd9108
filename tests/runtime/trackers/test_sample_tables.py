"""Tables of samples for trackers: which become due, when they are complete, and how large they are at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_answers import answer, keep

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.failures import Failure, Reason
from rljob_core.ports import SampleTable, TrackedPoint
from rljob_core.spec import RLJobSpec
from rljob_runtime.trackers import sample_tables
from rljob_runtime.trackers.sample_tables import SampleTables


class HandClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tables(
    folder: Path,
    clock: HandClock,
    *,
    groups: int = 8,
    uri: str = "",
    kind: type[SampleTables] = SampleTables,
) -> SampleTables:
    """Of a job with two held-out prompts."""
    spec = {
        "steps": 4,
        "model": {"uri": "/m"},
        "data": {"dataset": "chain_sum"},
        "evaluation": {"everySteps": 2, "samples": 2},
        "rollout": {"pools": [{"name": "a"}]},
    }
    config = JobConfig(
        namespace="default",
        job="j",
        uid="0123",
        spec=RLJobSpec.model_validate(spec),
        weights_uri="w",
        checkpoint_uri="c",
        trainer_log_uri="t",
        samples_uri=uri or str(folder / "samples"),
    )
    return kind(config, groups=groups, clock=clock)


def evaluated(version: int) -> TrackedPoint:
    return TrackedPoint(version + 1, version, "evaluation", {})


def column(table: SampleTable, name: str) -> list[Any]:
    place = table.columns.index(name)
    return [row[place] for row in table.rows]


def test_the_table_of_an_evaluation_has_its_answers_once_all_are_stored(tmp_path: Path) -> None:
    clock = HandClock()
    made = tables(tmp_path, clock)
    made.note([TrackedPoint(1, 0, "rollback"), evaluated(2)])
    assert made.ready() == []
    keep(tmp_path / "samples", answer("e2-0.0", reward=1.0), answer("e2-0.1", reward=1.0), writer="r.1")
    assert made.ready() == []
    keep(
        tmp_path / "samples",
        answer("e2-1.0", prompt="2+3=", response="4", reward=0.0),
        answer("e2-1.1", prompt="2+3=", failure=Failure(Reason.REWARD_RAISED, "x")),
        answer("e4-0.0", response="of another version"),
        answer("g0.0", response="of training"),
        writer="r.2",
    )
    (table,) = made.ready()
    assert (table.step, table.kind) == (2, "evaluation")
    assert column(table, "group") == ["e2-1", "e2-1", "e2-0", "e2-0"]  # the worst first
    assert column(table, "sample") == ["sampled", "greedy", "sampled", "greedy"]
    assert column(table, "prompt") == ["2+3=", "2+3=", "1+1=", "1+1="]
    assert column(table, "reward") == [0.0, None, 1.0, 1.0]
    assert column(table, "error") == ["", "RewardRaised: x", "", ""]
    assert column(table, "parts")[0] == '{"exact_match": 0.0}'
    assert not made.waiting
    assert made.ready() == []


def test_evaluations_that_become_due_while_tables_are_read_neither_stop_them_nor_get_lost(
    tmp_path: Path,
) -> None:
    """Points come in the event loop, and a thread reads: of more than four evaluations, the oldest have no tables."""

    class Followed(SampleTables):
        def _table(self, *arguments: Any, **options: Any) -> Any:
            self.note([evaluated(n) for n in (4, 6, 8, 10)])
            return super()._table(*arguments, **options)

    made = tables(tmp_path, HandClock(), kind=Followed)
    keep(tmp_path / "samples", *[answer(f"e{n}-{prompt}.0") for n in (2, 10) for prompt in (0, 1)])
    made.note([evaluated(2)])
    assert [table.step for table in made.ready()] == [2]
    assert [step for _, step, _ in made._due] == [4, 6, 8, 10]


def test_answers_that_never_come_are_not_waited_for(tmp_path: Path) -> None:
    clock = HandClock()
    made = tables(tmp_path, clock)
    keep(tmp_path / "samples", answer("e2-0.0"))
    made.note([evaluated(2)])
    assert made.ready() == []
    clock.now += 30
    assert [len(table.rows) for table in made.ready()] == [1]
    made.note([evaluated(4)])
    assert made.ready(last=True) == []  # the job has ended, and none was kept
    assert not made.waiting


def test_training_has_a_table_a_minute(tmp_path: Path) -> None:
    clock = HandClock()
    made = tables(tmp_path, clock, groups=1)
    keep(tmp_path / "samples", answer("g0.0", at=1), answer("g1.0", at=2), answer("e2-0.0", at=3))
    made.note([TrackedPoint(n, n, "commit", {}) for n in (1, 2)])
    (table,) = made.ready()
    assert (table.step, table.kind, column(table, "group")) == (2, "training", ["g1"])
    few = tables(tmp_path, clock, groups=3)
    few.note([TrackedPoint(1, 1, "commit", {})])
    assert few.ready() == []
    clock.now += 30
    assert [len(table.rows) for table in few.ready()] == [2]
    made.note([TrackedPoint(3, 3, "commit", {})])
    assert not made.waiting
    clock.now += 31
    made.note([TrackedPoint(4, 4, "commit", {})])
    assert made.waiting


def test_many_evaluations_leave_the_newest_tables_and_that_of_training(tmp_path: Path) -> None:
    made = tables(tmp_path, HandClock())
    keep(tmp_path / "samples", answer("g0.0"), *[answer(f"e{n}-0.0") for n in range(2, 40, 2)])
    made.note([TrackedPoint(1, 1, "commit", {})])
    for n in range(2, 40, 2):
        made.note([evaluated(n)])
    found = made.ready(last=True)
    assert [(table.kind, table.step) for table in found] == [
        ("training", 1),
        *(("evaluation", n) for n in (32, 34, 36, 38)),
    ]


def test_a_table_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_tables, "_ROWS", 3)
    made = tables(tmp_path, HandClock(), groups=100)
    long = [answer(f"g{n}.0", response="x" * 5000, at=n) for n in range(9)]
    keep(tmp_path / "samples", *long)
    made.note([TrackedPoint(1, 1, "commit", {})])
    (table,) = made.ready(last=True)
    assert [len(text) for text in column(table, "response")] == [4001] * 3
    monkeypatch.setattr(sample_tables, "_BYTES", 9000)
    made.note([evaluated(n) for n in range(2, 60, 2)])  # of many that wait, the newest
    assert made.ready(last=True) == []
    assert not made.waiting


def test_what_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    made = tables(tmp_path, HandClock(), uri="ftp://host/samples")
    made.note([evaluated(2)])
    with pytest.raises(SpecError):
        made.ready()
