"""Which groups are kept, how files are named, and which are deleted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.spec import RLJobSpec
from rljob_runtime.samples.keeping import (
    SampleFile,
    has_room,
    is_full,
    keeps,
    outdated,
    pause_after,
    share_of,
)


def spec(*, prompts: int, group: int, tokens: int, **samples: object) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "steps": 1,
            "model": {"uri": "m"},
            "data": {"dataset": "chain_sum", "promptsPerStep": prompts, "groupSize": group},
            "samples": samples,
            "rollout": {"pools": [{"name": "a"}], "sampling": {"maxTokens": tokens}},
        }
    )


def test_a_small_job_keeps_all_and_a_large_one_about_a_million_tokens_of_a_step() -> None:
    assert share_of(spec(prompts=32, group=8, tokens=6)) == 1.0
    assert share_of(spec(prompts=256, group=8, tokens=8192)) == 1 / 16
    assert share_of(spec(prompts=256, group=8, tokens=8192, share=0.5)) == 0.5
    assert share_of(spec(prompts=1, group=1, tokens=1, share=0)) == 0.0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_about_that_share_of_groups_is_kept_and_every_evaluation(share: float) -> None:
    kept = [keeps(f"g{prompt}", share) for prompt in range(10_000)]
    assert abs(sum(kept) / len(kept) - share) < 0.02
    assert all(keeps(f"e{version}-{prompt}", share) for version in range(10) for prompt in range(10))


def file(created: int, kind: str = "training", size: int = 10, writer: str = "reward-0.1a") -> SampleFile:
    return SampleFile(created, "training" if kind == "training" else "evaluation", writer, 1, size)


def test_a_file_is_known_by_its_name() -> None:
    named = file(1_700_000_000_123)
    assert named.name == "training-1700000000123-reward-0.1a-0001.parquet"
    assert SampleFile.of(named.name, 10) == named
    for other in (f".{named.name}.writing", "training-1.parquet", "notes.txt", named.name + "~"):
        assert SampleFile.of(other, 10) is None


def test_files_are_in_the_order_of_time_whoever_writes_them() -> None:
    names = sorted([file(3, writer="a.1"), file(1, writer="b.1"), file(2, "evaluation", writer="c.1")])
    assert [found.created for found in names] == [1, 2, 3]


def test_the_oldest_training_goes_first_then_the_oldest_evaluation_and_the_newest_stay() -> None:
    files = [file(1, "evaluation"), file(2), file(3), file(4, "evaluation"), file(5)]
    assert outdated(files, 50) == []
    assert [f.created for f in outdated(files, 49)] == [2]
    assert [f.created for f in outdated(files, 35)] == [2, 3]
    assert [f.created for f in outdated(files, 29)] == [2, 3, 1]
    assert [f.created for f in outdated(files, 0)] == [2, 3, 1]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.integers(0, 50)), max_size=20, unique=True),
    st.integers(0, 500),
)
def test_what_stays_fits_or_is_the_newest_of_its_kind(drawn: list[tuple[int, bool, int]], keep: int) -> None:
    files = [file(created, "training" if kind else "evaluation", size) for created, kind, size in drawn]
    deleted = outdated(files, keep)
    left = [found for found in files if found not in deleted]
    assert sum(f.size for f in left) <= keep or all(
        sum(other.kind == kind for other in left) <= 1 for kind in ("training", "evaluation")
    )
    assert {f.kind for f in left} == {f.kind for f in files}
    # No file is deleted without need.
    assert not deleted or sum(f.size for f in [*left, deleted[-1]]) > keep


def test_files_are_a_part_of_what_is_kept() -> None:
    assert is_full(8 << 20, 1 << 30)
    assert not is_full((8 << 20) - 1, 1 << 30)
    assert is_full(128 << 10, 1 << 20)
    assert not is_full(1000, 1)


def test_samples_leave_a_gigabyte_or_a_twentieth_to_checkpoints() -> None:
    assert has_room(1, free=(1 << 30) + 1, total=1 << 40)
    assert not has_room(2, free=(1 << 30) + 1, total=1 << 40)
    assert has_room(0, free=50, total=1000)
    assert not has_room(1, free=50, total=1000)
    assert has_room(1, free=0, total=0)  # some network file systems do not say


def test_a_write_takes_a_hundredth_of_the_time() -> None:
    assert pause_after(0.001) == 2.0
    assert pause_after(0.1) == pytest.approx(10.0)
    assert pause_after(60.0) == 30.0
