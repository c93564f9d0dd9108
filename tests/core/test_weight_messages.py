"""Names of the messages of weights, and what a copy of them lacks."""

from __future__ import annotations

import pytest

from rljob_core.weight_messages import BEGINS, begins, has_tensors, kept_keys, lacking_at_copy, only_at_copy

HUB = {
    "chunk.v1": 1, "deleted.v1": 1, "manifest.v1": 1,
    "chunk.v2": 7, "part.v2": 1, "manifest.v2": 1,
    "chunk.v3": 2, "manifest.v3": 1,
    "chunk.v4": 3,
}  # fmt: skip
V2 = {"chunk.v2": 7, "part.v2": 1, "manifest.v2": 1}
MANIFESTS = {"v2": 20, "v3": 30}


@pytest.mark.parametrize("text", ["", "0", "-1", "31", "1.0", "٣", "9" * 5000, "a"])
def test_a_header_that_names_no_message_before_its_own_counts_for_nothing(text: str) -> None:
    assert begins({BEGINS: text}, own=30) is None


def test_a_version_begins_where_its_header_says() -> None:
    assert begins({BEGINS: "30"}, own=30) == 30
    assert begins({}, own=30) is None


def test_versions_whose_tensors_are_deleted_are_not_kept() -> None:
    assert kept_keys(HUB) == ["v2", "v3"]
    assert has_tensors("v4", HUB)
    assert not has_tensors("v1", HUB)


@pytest.mark.parametrize(
    ("copy", "first", "last", "lacking"),
    [
        (HUB, 1, 40, []),
        ({}, 1, 19, []),  # nothing has come yet
        ({}, 21, 29, []),  # nor does it need what came before
        (V2, 1, 29, []),
        (V2, 1, 30, ["v3"]),
        ({**V2, "chunk.v2": 6}, 1, 20, ["v2"]),
        ({"chunk.v2": 7, "part.v2": 1}, 1, 20, ["v2"]),
        ({"chunk.v2": 7, "manifest.v2": 1}, 1, 20, ["v2"]),
        ({**V2, "chunk.v2": 9}, 1, 20, []),  # the hub has deleted some meanwhile
        ({"chunk.v3": 2, "manifest.v3": 1}, 21, 30, []),
        ({"chunk.v3": 2, "manifest.v3": 1}, 20, 30, ["v2"]),
    ],
)
def test_what_a_copy_lacks(copy: dict[str, int], first: int, last: int, lacking: list[str]) -> None:
    assert lacking_at_copy(HUB, copy, MANIFESTS, first=first, last=last) == lacking


def test_what_only_a_copy_has() -> None:
    assert only_at_copy(HUB, {**HUB, "chunk.v0": 7, "chunk.v3": 5}) == ["chunk.v0"]
