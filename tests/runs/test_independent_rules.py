"""The independent auditor's rules about restored commits and rollbacks: each sees what breaks it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from independent_rules import Json, Rules

SPEC: Json = {"steps": 9, "data": {"groupSize": 1}, "algorithm": {}}
COMMIT: Json = {
    "kind": "committed", "version": 1, "parent": "", "attempt": 1, "epoch": 1, "micro_batches": [["g1.0"]],
    "max_staleness": 1, "manifest": "m1", "key": "v1",
}  # fmt: skip
ITEM: Json = {
    "trajectory": "g1.0", "attempt": 1, "digest": "d", "span": {"min": 0, "max": 0}, "prompt": 1, "reward": 0.5,
}  # fmt: skip
FED: Json = {"step": 0, "micro_batch": 0, "attempt": 1, "epoch": 1, "items": [ITEM]}


def reserved(prompt: int, step: int) -> Json:
    return {"kind": "reserved", "group": f"g{prompt}", "prompt": prompt, "siblings": 1, "step": step}


def opened(step: int) -> Json:
    return {"kind": "opened", "step": step, "max_staleness": 1}


RECORDS: list[Json] = [
    {"kind": "pipeline", "max_staleness": 1, "max_attempts": 3},
    opened(0),
    reserved(0, 0),
    opened(1),
    {"kind": "restored", "commit": COMMIT, "moved": {"g0": 1}, "dropped": []},
    reserved(2, 1),
    {"kind": "revoked", "version": 0, "key": None, "manifest": "", "trajectories": 1},
    opened(0),
    reserved(3, 0),
]
RESTORED, AFTER, REVOKED, REOPENED = 4, 5, 6, 7


def wrong(records: list[Json], fed: Json = FED) -> list[str]:
    rules = Rules({"m1": {"version": 1, "parent": "", "proposal": {**COMMIT, "manifest": ""}}}, [fed], SPEC)
    return [text for record in records for text in rules.take(record, frozenset())] + list(rules.end())


def test_a_restored_commit_and_a_rollback_are_as_they_must_be() -> None:
    assert wrong(RECORDS) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: r[RESTORED].update(moved={}), "g0 is left in the buffer of step 0"),
        (lambda r: r[RESTORED].update(dropped=["g7"]), "g7 was dropped from the buffer of step 0"),
        (lambda r: r[RESTORED]["commit"].update(version=2), "version 2 does not follow version 0"),
        (lambda r: r[RESTORED]["commit"].update(attempt=2), "the trainer was not fed what version 1 trained"),
        (lambda r: r.insert(AFTER, reserved(1, 1)), "g1 is not the group of the next prompt"),
        (lambda r: r[REVOKED].update(trajectories=2), "1 trajectories are revoked, and not 2"),
        (lambda r: r[REVOKED].update(key="v1"), "which is not in the chain"),
        (lambda r: r.insert(REVOKED, opened(0)), "the buffer of step 0 was opened twice"),
        (lambda r: r.insert(REOPENED, r[RESTORED]), "g1 has no single end"),
        (
            lambda r: r.append({"kind": "moved", "group": "g2", "source": 1, "target": 0, "displaced": ""}),
            "g2 is moved from the buffer of step 1, where it has no entry",
        ),
    ],
)
def test_what_breaks_a_rule_is_seen(change: Callable[[list[Json]], Any], text: str) -> None:
    records = copy.deepcopy(RECORDS)
    change(records)
    assert any(text in sentence for sentence in wrong(records)), wrong(records)


def test_the_trainers_log_has_the_versions_of_what_a_restored_commit_trained() -> None:
    fed = copy.deepcopy(FED)
    fed["items"][0]["span"] = {"min": 0, "max": 3}
    assert wrong(RECORDS, fed) == ["g1.0 was trained with tokens of versions that step 0 cannot have"]
