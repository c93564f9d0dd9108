"""What the audit demands of the ledger where a group is given up, and where the job succeeds."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from evidence_builder import EvidenceBuilder, job, members, refuted
from rich.console import Console

from rljob_cli.audit import audit
from rljob_cli.audit.table import print_table
from rljob_core.records import (
    Dispatched,
    Evaluated,
    Generated,
    GroupAborted,
    Rewarded,
    SiblingReset,
)
from rljob_core.trajectory import VersionSpan

SPEC: dict[str, Any] = {
    "steps": 3,
    "data": {"promptsPerStep": 2, "groupSize": 2, "seed": 1},
    "reward": {"functions": ["exact_match"]},
    "evaluation": {"everySteps": 2, "samples": 4, "groupSize": 1},
}


def started(*, steps: int = 3, drops: bool = True) -> EvidenceBuilder:
    """Three steps are committed; g6 of the fourth is scored, both of its trajectories with 1.0; g7 is planned."""
    evidence_builder = job()
    evidence_builder.began_under(
        {**SPEC, "steps": steps, "algorithm": {"scaleByStd": True, "dropUniformGroups": drops}}
    )
    evidence_builder.reserve("g7", 3)
    return evidence_builder


def reset(trajectory: str, attempt: int, *, failure: bool = False, died: bool = False) -> SiblingReset:
    reason = "EngineLost" if died else "RewardRaised"
    return SiblingReset(trajectory, attempt, reason, failure, died=died)


def exhausted(cause: str, *trajectories: str) -> GroupAborted:
    return GroupAborted("g7", "PromptExhausted", dict.fromkeys(trajectories or ("g7.0",), cause))


def found(evidence_builder: EvidenceBuilder) -> set[str]:
    return refuted(audit(evidence_builder.evidence()).checks).get("causes", set())


def do(*_: None) -> None:
    """What the arguments have done, one after the other."""


def lost(evidence_builder: EvidenceBuilder, group: str = "g6") -> None:
    evidence_builder.write(GroupAborted(group, "PayloadLost"))


Happens = Callable[[EvidenceBuilder], None]
BORNE_OUT: dict[str, Happens] = {
    "as many failures as attempts": lambda s: s.write(
        *(reset("g7.0", n, failure=True) for n in (2, 3)), exhausted("RewardRaised")
    ),
    "deaths of engines alone, and one that was its failure": lambda s: s.write(
        reset("g7.0", 2, died=True), reset("g7.0", 3, died=True, failure=True), exhausted("EngineLost")
    ),
    "a prompt that no engine can be sent": lambda s: s.write(exhausted("PromptUnsendable", *members("g7"))),
    "a prompt that no engine can be sent again, after one has answered it": lambda s: s.write(
        Dispatched(members("g7"), (1, 1), "engine", 3),
        Generated("g7.0", 1, VersionSpan(3, 3), 8, 4, "p-g7.0-1", 1, 0),
        exhausted("PromptUnsendable", "g7.1"),
    ),
    "one score for all": lambda s: s.write(GroupAborted("g6", "UniformGroup")),
    "a payload that the trainer could not read": lambda s: do(s.train("g6"), s.trainer(1), lost(s)),
    "a payload that the trainer misses under a new coordinator, whose ledger lost that it was sent": lambda s: (
        do(s.coordinator(2, "two"), s.trainer(1), lost(s))
    ),
    "the end": lambda s: do(s.finish(), s.write(*(GroupAborted(g, "JobFinished") for g in ("g6", "g7")))),
}
GROUNDLESS: dict[str, Happens] = {
    "too few failures": lambda s: s.write(reset("g7.0", 2, failure=True), exhausted("RewardRaised")),
    "failures of a sibling": lambda s: s.write(
        *(reset("g7.1", n, failure=True) for n in (2, 3)), exhausted("RewardRaised")
    ),
    "deaths of engines before it was generated": lambda s: do(
        s.write(reset("g7.0", 2, died=True), reset("g7.0", 3, died=True)),
        s.generate("g7", 3, attempt=3),
        s.write(exhausted("EngineLost")),
    ),
    "deaths of engines that another prompt had killed": lambda s: do(
        s.write(*(reset(t, n, died=True) for n in (2, 3) for t in ("g6.0", "g7.0"))),
        s.write(GroupAborted("g6", "PromptExhausted", {"g6.0": "EngineLost"})),
        s.write(exhausted("EngineLost")),
    ),
    "a trajectory of another group": lambda s: s.write(exhausted("RewardRaised", "g5.0")),
    "a prompt that engines have answered": lambda s: do(
        s.generate("g7", 3), s.write(exhausted("PromptUnsendable", *members("g7")))
    ),
    "a group that is not scored": lambda s: s.write(
        Dispatched(members("g7"), (1, 1), "engine", 3), GroupAborted("g7", "UniformGroup")
    ),
    "scores that differ": lambda s: do(
        s.generate("g7", 3),
        s.alter(Rewarded, lambda r: r.trajectory == "g7.0", reward=0.5),
        s.write(GroupAborted("g7", "UniformGroup")),
    ),
    "a payload that the trainer was never sent": lambda s: lost(s, "g7"),
    "an end to come": lambda s: s.write(GroupAborted("g7", "JobFinished")),
    "a loss that only a restored step tells of": lambda s: s.write(GroupAborted("g7", "LedgerLost")),
    "a rollback that never was": lambda s: s.write(GroupAborted("g7", "VersionRevoked")),
    "not a reason of the ledger": lambda s: s.write(GroupAborted("g7", "TooLong")),
}


def test_prompts_that_were_not_sent_by_the_coordinator_s_word_are_listed() -> None:
    evidence_builder = started()
    evidence_builder.write(exhausted("PromptUnsendable", *members("g7")))
    findings = audit(evidence_builder.evidence())
    assert findings.counts["unsent_prompts"] == [7]
    out = StringIO()
    print_table(Console(file=out, width=120), findings)
    assert "1 prompts could not be sent to engines, by the coordinator's word: 7\n" in out.getvalue()
    assert audit(started().evidence()).counts["unsent_prompts"] == []


@pytest.mark.parametrize("what", BORNE_OUT)
def test_a_cause_that_the_ledger_shows(what: str) -> None:
    evidence_builder = started()
    evidence_builder.write(
        Evaluated(0, 0.5, 0.5, 4, 8), Evaluated(2, 0.5, 0.5, 4, 8), Evaluated(3, 0.5, 0.5, 4, 8)
    )
    BORNE_OUT[what](evidence_builder)
    assert found(evidence_builder) == set()


@pytest.mark.parametrize("what", GROUNDLESS)
def test_a_cause_that_the_ledger_does_not_show(what: str) -> None:
    evidence_builder = started()
    GROUNDLESS[what](evidence_builder)
    assert found(evidence_builder) == {"g7"}


def test_groups_of_one_score_are_given_up_only_if_the_spec_says_so() -> None:
    evidence_builder = started(drops=False)
    evidence_builder.write(GroupAborted("g6", "UniformGroup"))
    assert found(evidence_builder) == {"g6"}


def test_no_more_groups_of_one_score_are_given_up_than_one_step_may_replace() -> None:
    evidence_builder = started()
    for number in range(17):  # `EvidenceBuilder.pipeline` allows 16
        group = f"g{number + 8}"
        evidence_builder.reserve(group, 3)
        evidence_builder.generate(group, 3)
        evidence_builder.write(GroupAborted(group, "UniformGroup"))
    assert found(evidence_builder) == {"g24"}


def test_a_success_needs_all_steps_and_the_last_evaluation() -> None:
    evidence_builder = started()
    evidence_builder.finish()
    assert found(evidence_builder) == {"the job"}
    evidence_builder = started(steps=4)
    evidence_builder.write(Evaluated(3, 0.5, 0.5, 4, 8))
    evidence_builder.finish()
    assert found(evidence_builder) == {"the job"}
