"""The reader: filters, orders, pages; and files that are damaged, gone, or of another release."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_answers import answer, keep

from rljob_core.errors import StoreUnavailable
from rljob_core.failures import Failure, Reason
from rljob_core.records import FED, FedMicroBatch, FedTrajectory
from rljob_core.trajectory import VersionSpan
from rljob_runtime.samples.places import SampleFolder
from rljob_runtime.samples.read import SampleFilter, SampleReader
from rljob_runtime.samples.rows import FORMAT_KEY
from rljob_runtime.samples.trained import TrainedLog


def fed(folder: Path, step: int, *trajectories: str, attempt: int = 1, advantage: float = 0.5) -> None:
    """A line of the trainer's log: what it trained on in the step, from 0."""
    items = tuple(
        FedTrajectory(t, 1, f"{t}@1", VersionSpan(max(0, step - 1), step), 0, 1.0, advantage)
        for t in trajectories
    )
    folder.mkdir(exist_ok=True)
    with (folder / f"attempt-{attempt}.jsonl").open("ab") as file:
        file.write(FED.dump_json(FedMicroBatch(step, 0, attempt, 1, items)) + b"\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three training groups, of which the second fails and the third is trained on first, and an evaluation."""
    samples = tmp_path / "samples"
    keep(
        samples,
        answer("g0.0", prompt="One", reward=1.0, at=1),
        answer("g0.1", prompt="One", reward=0.0, at=2),
        answer("g1.0", prompt="Two", failure=Failure(Reason.REWARD_TIMEOUT, "30 s"), at=3),
        answer("g1.1", prompt="Two", failure=Failure(Reason.REWARD_TIMEOUT, "30 s"), at=3),
        answer("e4-0.0", prompt="One again", reward=1.0, at=4),
        answer("e4-0.1", prompt="One again", reward=0.0, at=4),
        writer="reward-0.a",
    )
    keep(
        samples,
        answer("g2.0", prompt="Three", reward=0.0, attempt=1, at=5),
        answer("g2.0", prompt="Three", reward=1.0, attempt=2, at=6),
        writer="reward-1.b",
    )
    fed(tmp_path / "trainer", 0, "g2.0")
    fed(tmp_path / "trainer", 3, "g0.0", "g0.1")
    return tmp_path


def reader(run: Path) -> SampleReader:
    return SampleReader(SampleFolder(run / "samples"), TrainedLog(run / "trainer"))


@pytest.mark.parametrize(
    ("chosen", "groups"),
    [
        (SampleFilter(), ["g2", "e4-0", "g1", "g0"]),
        (SampleFilter(step=1), ["g2"]),
        (SampleFilter(step=4), ["e4-0", "g0"]),
        (SampleFilter(step=2), []),
        (SampleFilter(prompt="one"), ["e4-0", "g0"]),
        (SampleFilter(prompt="one", evaluation=True), ["e4-0"]),
        (SampleFilter(prompt=".*"), []),
        (SampleFilter(reward_below=0.5), ["g1"]),
        (SampleFilter(reward_below=0.75), ["e4-0", "g1", "g0"]),
        (SampleFilter(aborted=True), ["g2", "g1"]),
        (SampleFilter(aborted=False), ["e4-0", "g0"]),
        (SampleFilter(evaluation=True), ["e4-0"]),
        (SampleFilter(evaluation=False), ["g2", "g1", "g0"]),
    ],
    ids=str,
)
def test_groups_are_shown_for_which_all_that_is_given_holds(
    run: Path, chosen: SampleFilter, groups: list[str]
) -> None:
    page = reader(run).page(chosen)
    assert [group.group for group in page.groups] == groups
    assert (page.total, page.kept) == (len(groups), 4)


def test_orders(run: Path) -> None:
    def names(order: str) -> list[str]:
        return [group.group for group in reader(run).page(order=order).groups]  # type: ignore[arg-type]

    assert names("oldest") == ["g0", "g1", "e4-0", "g2"]
    assert names("worst") == ["e4-0", "g0", "g2", "g1"]
    assert names("best") == ["g2", "e4-0", "g0", "g1"]


def test_pages(run: Path) -> None:
    whole = reader(run).page().groups
    pages = [reader(run).page(start=start, limit=3) for start in (0, 3, 6)]
    assert [group for page in pages for group in page.groups] == list(whole)
    assert [(page.start, page.total) for page in pages] == [(0, 4), (3, 4), (6, 4)]


def test_an_attempt_that_was_replaced_counts_no_more(run: Path) -> None:
    (group,) = reader(run).page(SampleFilter(prompt="Three")).groups
    assert [(a.attempt, a.replaced) for a in group.answers] == [(2, False), (1, True)]
    assert group.reward == 1.0


def test_what_the_trainer_did_is_with_the_answer(run: Path) -> None:
    (group,) = reader(run).page(SampleFilter(prompt="One", evaluation=False)).groups
    assert group.step == 4
    trained = group.answers[0].trained
    assert trained is not None
    assert (trained.step, trained.staleness, trained.advantage) == (4, 1, 0.5)
    (other,) = reader(run).page(SampleFilter(prompt="Two")).groups
    assert other.step is None
    assert other.reward is None


def test_a_step_that_a_later_trainer_did_not_continue_from_does_not_count(run: Path) -> None:
    """The first trainer died in step 5 without a checkpoint of step 4: the second continues from version 3."""
    fed(run / "trainer", 4, "g1.0")
    reading = reader(run)
    assert reading.page(SampleFilter(step=5, evaluation=False)).total == 1
    fed(run / "trainer", 3, "g1.1", attempt=2)
    reading.refresh()
    assert reading.page(SampleFilter(step=5, evaluation=False)).total == 0
    assert [g.group for g in reading.page(SampleFilter(step=4, evaluation=False)).groups] == ["g1"]
    steps = {group.group: group.step for group in reading.page().groups}
    assert steps == {"g2": 1, "e4-0": None, "g1": 4, "g0": None}
    # A third trainer goes back to version 0, also behind what the second has replaced.
    fed(run / "trainer", 0, "g0.0", attempt=3)
    reading.refresh()
    assert {g.group: g.step for g in reading.page().groups} == {"g2": None, "e4-0": None, "g1": None, "g0": 1}


def test_what_is_no_plain_file_is_passed_over(run: Path) -> None:
    os.mkfifo(run / "trainer" / "attempt-0.jsonl")
    (run / "trainer" / "attempt-7.jsonl").mkdir()
    assert {group.group: group.step for group in reader(run).page().groups}["g2"] == 1


def test_of_an_attempt_that_is_there_twice_the_newest_is_shown_with_what_became_of_it(tmp_path: Path) -> None:
    """The ledger lost its end in a power cut: the attempt was generated again, by the same number."""
    lost, again = (answer(response=text, at=float(at)) for at, text in enumerate(("old", "new")))
    lost = replace(lost, result=replace(lost.result, payload_digest="lost"))
    for number, one in enumerate((lost, again)):
        keep(tmp_path / "samples", one, writer=f"reward-{number}.a")
    (group,) = reader(tmp_path).page().groups
    assert [(a.response, a.trained) for a in group.answers] == [("new", None)]
    fed(tmp_path / "trainer", 0, "g0.0")
    (group,) = reader(tmp_path).page().groups
    assert group.step == 1
    # The other way round: the trainer has trained on the one, and the other is what is kept.
    keep(tmp_path / "samples", replace(lost, scored=again.scored + 9), writer="reward-2.a")
    (group,) = reader(tmp_path).page().groups
    assert [(a.payload_digest, a.trained) for a in group.answers] == [("lost", None)]


def test_samples_of_another_job_are_left_out(run: Path) -> None:
    keep(run / "samples", answer("g0.0", reward=0.0, at=99), answer("g9.0"), writer="reward-9.z", job="other")
    page = SampleReader(SampleFolder(run / "samples"), job="0123").page()
    assert [group.group for group in page.groups] == ["g2", "e4-0", "g1", "g0"]
    (problem,) = page.problems
    assert problem.endswith("-reward-9.z-0001.parquet is of another job (UID 'other') and was left out")
    assert reader(run).page().problems == ()  # nobody has said of which job


def test_what_is_added_is_read_and_a_step_that_is_trained_again_counts_as_the_last(run: Path) -> None:
    reading = reader(run)
    assert not reading.refresh()
    fed(run / "trainer", 5, "g0.0", "g0.1", attempt=2, advantage=-1.0)
    with (run / "trainer" / "attempt-2.jsonl").open("ab") as file:
        file.write(b'{"step":6,"items":[{"trajectory":"g1.')  # is being written
    keep(run / "samples", answer("g3.0", at=9), writer="reward-0.c")
    assert reading.refresh()
    assert reading.page().groups[0].group == "g3"
    (group,) = reading.page(SampleFilter(step=6)).groups
    assert group.answers[0].trained is not None
    assert group.answers[0].trained.advantage == -1.0
    assert reading.page(SampleFilter(step=7)).total == 0


def test_a_place_that_is_empty_or_missing(tmp_path: Path) -> None:
    reading = SampleReader(SampleFolder(tmp_path / "none"))
    assert reading.page(SampleFilter(step=1, prompt="x", reward_below=1.0)) == reading.page()
    assert reading.page().total == 0
    assert not (tmp_path / "none").exists()


def test_files_that_cannot_be_read_are_named_and_left_out(run: Path) -> None:
    samples = run / "samples"
    cut, gone, newer, other = sorted(samples.glob("*.parquet"))[:1] + [
        samples / f"training-170000000000{n}-x-0001.parquet" for n in range(3)
    ]
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    gone.write_bytes(b"")
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({FORMAT_KEY: b"9"}), newer)
    pq.write_table(pa.table({"a": [1]}), other)
    (samples / "notes.txt").write_text("mine")
    page = reader(run).page()
    assert len(page.problems) == 4
    assert [group.group for group in page.groups] == ["g2", "g1", "g0"]
    assert any(problem.startswith(f"{cut.name} is damaged and was left out: ") for problem in page.problems)
    assert f"{newer.name} was written by another release of rljob: read it with that release" in page.problems
    assert f"{other.name} holds no samples of rljob" in page.problems


class Counting(SampleFolder):
    """Counts what is opened, and refuses one file as long as it is to."""

    def __init__(self, root: Path, *, refused: str) -> None:
        super().__init__(root)
        self.refused = refused
        self.opened = list[str]()

    def open(self, name: str) -> Any:
        self.opened.append(name)
        if name == self.refused:
            raise StoreUnavailable("the server does not answer")
        return super().open(name)


def test_a_damaged_file_is_read_once_and_one_that_cannot_be_read_now_again(run: Path) -> None:
    damaged, refused, *_ = sorted((run / "samples").glob("*.parquet"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    place = Counting(run / "samples", refused=refused.name)
    reading = SampleReader(place)
    for _ in range(3):
        assert not reading.refresh()
        named = {problem.partition(" ")[0] for problem in reading.page().problems}
        assert named == {damaged.name, refused.name}
    assert place.opened.count(damaged.name) == 1
    assert place.opened.count(refused.name) == 4
    place.refused = ""
    damaged.write_bytes(whole)
    assert reading.refresh()
    assert (reading.page().total, reading.page().problems) == (4, ())


def test_a_file_that_is_deleted_between_two_pages_takes_its_groups_along(run: Path) -> None:
    reading = reader(run)
    for path in (run / "samples").glob("evaluation-*"):
        path.unlink()
    page = reading.page()
    assert [group.group for group in page.groups] == ["g2", "g1", "g0"]
    assert page.problems == ()
    reading.refresh()
    assert reading.page().kept == 3


def test_bytes_that_rot_are_no_surprise(run: Path) -> None:
    """Whichever byte is damaged, the reader says something or shows something."""
    (file,) = (run / "samples").glob("training-*-reward-0.a-*.parquet")
    whole = bytearray(file.read_bytes())
    for position in range(0, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(bytes([*whole[:position], whole[position] ^ 0xFF, *whole[position + 1 :]]))
        reading = reader(run)
        page = reading.page()
        assert page.groups
        reading.page(SampleFilter(prompt="one"))


def test_a_log_that_is_none_is_read_no_further_than_a_line(tmp_path: Path) -> None:
    with (tmp_path / "attempt-1.jsonl").open("wb") as file:
        file.write(b'{"step": ' + b"9" * 5000 + b"}\n")
        file.truncate(1 << 40)
    log = TrainedLog(tmp_path)
    log.refresh()
    assert log.prompts_of(1) == set()
