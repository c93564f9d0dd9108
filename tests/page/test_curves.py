"""Columns of metrics.jsonl: half written, taken back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_cli.page.documents.curves import ROWS_PER_PAGE, MetricsColumns


def line(version: int, **fields: Any) -> bytes:
    return json.dumps({"step": version, "version": version, "seconds": float(version), **fields}).encode()


def commit(version: int, **fields: Any) -> bytes:
    return line(version, reward_mean=version / 10, stats={"loss": 0.5, "tokens": 100}, **fields)


def columns_of(*lines: bytes, **prices: Any) -> MetricsColumns:
    columns = MetricsColumns(**prices)
    for number, text in enumerate(lines, start=1):
        columns.add(number, text)
    return columns


def test_commits_and_evaluations_are_rows() -> None:
    columns = columns_of(line(0, heldout_sampled=0.25), commit(1), commit(2), line(2, heldout_sampled=0.5))
    page = columns.page(0)
    assert page["versions"] == [0, 1, 2, 2]
    assert page["kinds"] == ["e", "c", "c", "e"]
    assert page["columns"]["reward_mean"] == [None, 0.1, 0.2, None]
    assert page["columns"]["heldout_sampled"] == [0.25, None, None, 0.5]
    assert page["columns"]["stats.loss"] == [None, 0.5, 0.5, None]
    assert page["columns"]["trained_per_second"] == [None, None, 100.0, None]
    assert columns.steps == 2


def test_a_commit_that_two_coordinators_published_is_one_row() -> None:
    assert columns_of(commit(1), commit(1, epoch=2)).page(0)["versions"] == [1]


def test_rows_that_the_user_went_back_from_are_gone_and_readers_start_again() -> None:
    columns = columns_of(
        commit(1),
        commit(2),
        commit(3),
        line(3, finished="Failed", failure={"reason": "StorageRefused", "detail": "no disk"}),
    )
    assert (columns.finished, columns.message) == ("Failed", "no disk")
    columns.add(5, line(1, gone_back=True))
    assert columns.page(0)["versions"] == [1]
    assert (columns.generation, columns.finished, columns.steps) == (1, "", 1)
    columns.add(6, commit(2))
    assert columns.page(0)["versions"] == [1, 2]


def test_a_finished_run_that_is_extended_is_not_finished() -> None:
    columns = columns_of(commit(1), line(1, finished="Succeeded"), commit(2))
    assert columns.finished == ""
    columns.add(4, line(2, finished="Succeeded"))
    assert columns.finished == "Succeeded"


def test_an_evaluation_that_ends_late_takes_no_seconds_of_its_own() -> None:
    columns = columns_of(commit(1), commit(2), line(1, heldout_sampled=0.1), commit(3))
    assert columns.page(0)["columns"]["seconds"] == [1.0, 2.0, 1.0, 3.0]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"null",
        b'{"version": "2"}',
        b'{"version": true}',
        b"{}",
        b"\xff\x00",
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_none_is_left_out_and_said(text: bytes) -> None:
    columns = columns_of(commit(1), text, commit(2))
    assert columns.page(0)["versions"] == [1, 2]
    assert columns.problems == ["metrics.jsonl, line 2 is not a line of metrics: it is left out"]


def test_numbers_that_no_chart_of_ours_has_get_one() -> None:
    columns = columns_of(commit(1, rewards={"exact_match": 0.5}, truncated=0.25, unknown="x", nothing=None))
    titles = [chart["title"] for chart in columns.charts()]
    assert titles.index("Reward") < titles.index("rewards.exact_match")
    assert "truncated" in titles
    assert "unknown" not in titles


def test_numbers_that_are_none_are_no_points() -> None:
    text = commit(1).replace(b"0.5", b"NaN")
    assert "stats.loss" not in columns_of(text).page(0)["columns"]


def test_a_long_run_comes_page_by_page() -> None:
    columns = columns_of(*(commit(version) for version in range(1, ROWS_PER_PAGE + 3)))
    first, second = columns.page(0), columns.page(ROWS_PER_PAGE)
    assert (first["end"], first["total"]) == (ROWS_PER_PAGE, ROWS_PER_PAGE + 2)
    assert second["versions"] == [ROWS_PER_PAGE + 1, ROWS_PER_PAGE + 2]
    assert columns.page(ROWS_PER_PAGE * 9)["versions"] == []


def test_cost_is_the_price_of_the_engines_that_were_there() -> None:
    hour = line(1, reward_mean=0.1, engines=2).replace(b'"seconds": 1.0', b'"seconds": 3600')
    assert columns_of(hour, average=1.5).last("cost") == 3.0
    pools = {"spot": {"engines": 3}, "own": {"engines": 1}}
    hour = line(1, reward_mean=0.1, pools=pools).replace(b'"seconds": 1.0', b'"seconds": 3600')
    assert columns_of(hour, average=1.0, prices={"spot": 2.0}).last("cost") == 6.0
    assert columns_of(hour).last("cost") is None
