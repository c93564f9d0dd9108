from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from evidence_builder import (
    BOUND,
    JOB,
    SPEC,
    Entry,
    EvidenceBuilder,
    job,
    members,
    of,
    plan,
    refuted,
    train_step,
)
from rich.console import Console

from rljob_cli.audit import audit
from rljob_cli.audit.table import as_text, print_table
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    EpochClaimed,
    FedMicroBatch,
    FedTrajectory,
    Generated,
    GroupAborted,
    GroupMoved,
    GroupReserved,
    MicroBatchAssigned,
    Record,
    Rewarded,
    SiblingReset,
    SpecInForce,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
    Writer,
)
from rljob_core.trajectory import VersionSpan, group_of


def verdict(evidence_builder: EvidenceBuilder) -> dict[str, set[str]]:
    return refuted(audit(evidence_builder.evidence()).checks)


def test_finds_nothing_in_a_clean_job_and_counts_it() -> None:
    findings = audit(job().evidence())
    assert refuted(findings.checks) == {}
    assert findings.holds
    assert findings.counts["planned"] == 14
    assert findings.counts["consumed"] == 12
    assert findings.counts["open"] == 2
    assert findings.counts["aborted"] == {}
    assert findings.counts["versions"] == 3
    # No claim is empty: each was checked on something.
    assert all(check.examined for check in findings.checks)


def test_finds_nothing_after_a_trainer_a_coordinator_and_a_step_started_over() -> None:
    evidence_builder = job()
    evidence_builder.reserve("g7", 3)
    evidence_builder.generate("g7", 3)
    evidence_builder.train("g6")
    evidence_builder.trainer(2)  # the gang died with a micro-batch fed
    evidence_builder.train("g6")
    evidence_builder.coordinator(2, "two")
    evidence_builder.trainer(2)  # the same gang under a new coordinator
    evidence_builder.train("g7")
    evidence_builder.trainer(2)  # a payload was missing: the step starts over under the same fence
    evidence_builder.train("g7")
    evidence_builder.train("g6", last=True)
    evidence_builder.commit()
    assert verdict(evidence_builder) == {}


def test_finds_nothing_in_aborts_resets_and_moves() -> None:
    evidence_builder = job()
    evidence_builder.reserve("g7", 3)
    for attempt in (2, 3):
        evidence_builder.write(SiblingReset("g7.0", attempt, "RewardTimeout", True))
    evidence_builder.write(GroupAborted("g7", "PromptExhausted", {"g7.0": "RewardTimeout"}))
    evidence_builder.open(4)
    evidence_builder.reserve("g8", 4)
    evidence_builder.write(SiblingReset("g8.1", 2, "EngineLost", False))
    evidence_builder.write(GroupMoved("g6", 3, 4))
    assert verdict(evidence_builder) == {}
    assert audit(evidence_builder.evidence()).counts["aborted"] == {"PromptExhausted": 1, "RewardTimeout": 1}


def test_finds_nothing_in_a_job_whose_pipeline_was_changed_and_tells_of_it() -> None:
    evidence_builder = job()
    evidence_builder.pipeline("BoundedAsync", 3)
    for step in (4, 5, 6):
        evidence_builder.open(step)
    evidence_builder.pipeline("Streaming", 0)
    findings = audit(evidence_builder.evidence())
    assert refuted(findings.checks) == {}
    said = [(p["from_step"], p["mode"], p["max_staleness"]) for p in findings.counts["pipelines"]]
    assert said == [(0, "BoundedAsync", 1), (4, "BoundedAsync", 3), (7, "Streaming", 0)]


def test_passes_over_the_records_of_zombies() -> None:
    evidence_builder = job()
    evidence_builder.coordinator(2, "two")
    zombies = [Writer(1, "one"), Writer(2, "three")]
    for zombie in zombies:
        evidence_builder.writer = zombie
        evidence_builder.write(GroupAborted("g0", "ZombieWasHere"))
    evidence_builder.write(EpochClaimed(2, "three", JOB))  # not the first to claim the number
    evidence_builder.write(GroupAborted("g1", "ZombieWasHere"))
    findings = audit(evidence_builder.evidence())
    assert refuted(findings.checks) == {}
    assert findings.counts["records_of_fenced_writers"] == 4


def test_passes_over_messages_that_are_not_in_the_chain() -> None:
    evidence_builder = job()
    for _ in range(2):  # whoever wrote them knew another end of the ledger
        evidence_builder.ledger.append(
            Entry(evidence_builder.writer, (GroupAborted("g0", "Astray"),), counts=False)
        )
    evidence_builder.ledger.append(Entry(evidence_builder.writer, snapshot=b"of another state", counts=False))
    findings = audit(evidence_builder.evidence())
    assert refuted(findings.checks) == {}
    assert findings.counts["messages_out_of_chain"] == 3


# ------------------------------------------------------------------------------------------------ lost and revoked


def restored() -> EvidenceBuilder:
    """A job whose ledger lost two commits and all that led to them; they were taken back from their manifests.

    Version 4 is made of g6, whose second attempt the ledger does not know, and g8, which it never planned; it still
    has g7 in that buffer. Version 5 is made of groups that it never planned.
    """
    evidence_builder = job()
    evidence_builder.coordinator(1_000_700, "two")
    evidence_builder.reserve("g7", 3)
    evidence_builder.write(Dispatched(members("g7"), (1, 1), "engine", 3))
    evidence_builder.open(4)
    kept = len(evidence_builder.ledger)
    evidence_builder.coordinator(2_000_900, "three")
    evidence_builder.trainer(2)
    evidence_builder.write(
        GroupAborted("g7", "UniformGroup"), *(SiblingReset(t, 2, "Lost", False) for t in members("g6"))
    )
    evidence_builder.reserve("g8", 3)
    for group, attempt in (("g6", 2), ("g8", 1)):
        evidence_builder.generate(group, 3, attempt)
        evidence_builder.ready(group, 3, 3)
        evidence_builder.train(group, last=group == "g8")
    evidence_builder.commit()
    evidence_builder.reserve("g9", 4)
    evidence_builder.reserve("g10", 4)
    train_step(evidence_builder, "g9", "g10")
    evidence_builder.lose(len(evidence_builder.ledger) - kept)
    evidence_builder.coordinator(
        2_000_100, "four"
    )  # as many claims as the ledger has, and another number than was lost
    evidence_builder.restore(4, moved={"g7": 4})
    evidence_builder.restore(5, dropped=("g7",))
    evidence_builder.trainer(2)
    evidence_builder.pipeline("BoundedAsync", BOUND)
    plan(evidence_builder, 5, first=11)
    train_step(evidence_builder, "g11", "g12")
    return evidence_builder


def revoked() -> EvidenceBuilder:
    """The job after version 3: its user goes back to version 1, and trains two other steps."""
    evidence_builder = job()
    evidence_builder.coordinator(2, "two")
    evidence_builder.revoke(1)
    evidence_builder.trainer(2)
    evidence_builder.pipeline("BoundedAsync", BOUND)
    plan(evidence_builder, 1, first=7)
    train_step(evidence_builder, "g7", "g8")
    plan(evidence_builder, 2, first=9)
    train_step(evidence_builder, "g9", "g10")
    return evidence_builder


def test_finds_nothing_in_commits_that_were_taken_back_from_their_manifests() -> None:
    evidence_builder = restored()
    evidence_builder.snapshot()  # what the coordinators live by folds it as well
    findings = audit(evidence_builder.evidence())
    assert refuted(findings.checks) == {}
    counts = findings.counts
    assert (counts["versions"], counts["versions_restored"], counts["snapshots"]) == (6, 2, 2)
    assert (counts["planned"], counts["consumed"], counts["open"]) == (26, 24, 0)
    assert counts["aborted"] == {"LedgerLost": 2}


def test_a_restored_step_is_sound_where_the_trainers_log_cannot_be_read() -> None:
    """As `kubectl rljob` reads a job whose coordinator was killed before it recorded a commit."""
    seen = replace(restored().evidence(), manifests=(), fed=(), streams_only=True)
    assert refuted(audit(seen).checks) == {}


def test_a_restored_step_keeps_its_bound_though_its_buffer_was_opened_again_under_another() -> None:
    evidence_builder = restored()
    change_restored(evidence_builder, 4, max_staleness=2)
    assert verdict(evidence_builder) == {}


def test_a_restored_step_that_had_started_over_after_its_proposal() -> None:
    evidence_builder = restored()
    again = next(line for line in evidence_builder.fed if line.step == 4)
    evidence_builder.fed.append(
        again
    )  # the gang was asked to start over, and died; which counts, the ledger has lost
    assert verdict(evidence_builder) == {}


def test_finds_nothing_after_the_user_went_back_and_follows_the_surviving_chain() -> None:
    evidence_builder = revoked()
    evidence_builder.snapshot()
    findings = audit(evidence_builder.evidence())
    assert refuted(findings.checks) == {}
    counts = findings.counts
    assert (counts["versions"], counts["versions_revoked"]) == (3, 2)
    assert (counts["planned"], counts["consumed"], counts["open"]) == (22, 12, 0)
    assert counts["aborted"] == {"VersionRevoked": 10}  # two steps of them, and g6, which was open


def test_an_ended_job_continues_from_an_earlier_version() -> None:
    evidence_builder = job()
    evidence_builder.finish()
    evidence_builder.write(GroupAborted("g6", "JobFinished"))
    evidence_builder.coordinator(2, "two")
    evidence_builder.revoke(2)
    evidence_builder.trainer(2)
    plan(evidence_builder, 2, first=7)
    train_step(evidence_builder, "g7", "g8")
    findings = audit(evidence_builder.evidence())
    assert refuted(findings.checks) == {}
    assert findings.counts["aborted"] == {"JobFinished": 2, "VersionRevoked": 4}
    assert findings.counts["finished"] == ""


def test_messages_and_scores_that_were_lost_and_made_again_are_not_compared() -> None:
    evidence_builder = job()
    # The same attempt, from another engine, in the sequence that a lost message had; scored for itself.
    other = next(p for p in evidence_builder.payloads if p.trajectory == "g6.0")
    evidence_builder.payloads.append(replace(other, digest="other", sequence=2))
    score = next(r for r in evidence_builder.rewards if r.trajectory == "g6.0")
    evidence_builder.rewards.append(replace(score, payload_digest="other", reward=0.25, digest="r"))
    assert verdict(evidence_builder) == {}


# ------------------------------------------------------------------------------------------------ violations

Plant = Callable[[EvidenceBuilder], None]
PLANTED: dict[str, tuple[Callable[[], EvidenceBuilder], Plant, dict[str, set[str]]]] = {}


def planted(clean: Callable[[], EvidenceBuilder] = job, **expected: set[str]) -> Callable[[Plant], Plant]:
    """Register a way to break a clean job, and exactly the checks that must see it, with the ids they must name."""

    def register(plant: Plant) -> Plant:
        checks = {name.replace("_", "-"): ids for name, ids in expected.items()}
        PLANTED[plant.__name__] = (clean, plant, checks)
        return plant

    return register


G9_G10 = {*members("g9"), *members("g10")}

# ---- lost


@planted(one_ending={"g0"}, causes={"g0"})
def trained_and_aborted(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(GroupAborted("g0", "TooLong"))


@planted(one_ending={"g6"}, causes={"g6"})
def aborted_twice(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(GroupAborted("g6", "TooLong"), GroupAborted("g6", "TooLong"))


@planted(one_ending={"g6"})
def aborted_without_a_reason(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(GroupAborted("g6", ""))


@planted(one_ending={"g6"})
def still_open_when_the_job_has_succeeded(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.finish()


@planted(one_ending={"g0.1"}, same_batches={"g0.1"}, manifests={"version 1"})
def a_sibling_left_out(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepCommitted, lambda r: r.version == 1, micro_batches=(("g0.0",), members("g1")))


@planted(
    one_ending=set(members("g9")), digests={*members("g5"), *members("g9")}, same_batches=set(members("g9"))
)
def trained_but_never_planned(evidence_builder: EvidenceBuilder) -> None:
    train_instead(evidence_builder, "g5", "g9", at=2)


# ---- trained twice


@planted(
    once_by_ledger=set(members("g3")),
    once_by_trainer=set(members("g3")),
    once_by_manifests=set(members("g3")),
    full_steps=set(members("g3")),
)
def trained_twice_and_all_admit_it(evidence_builder: EvidenceBuilder) -> None:
    train_instead(evidence_builder, "g5", "g3", at=2)


@planted(
    once_by_trainer=set(members("g3")),
    once_by_manifests=set(members("g3")),
    same_batches={*members("g3"), *members("g5")},
    manifests={"version 3"},
)
def trained_twice_and_the_ledger_rewritten_to_hide_it(evidence_builder: EvidenceBuilder) -> None:
    """The ledger tells of a g5 in step 2 with all that belongs to it; in truth g3 was fed again."""
    rewritten = list(evidence_builder.ledger)
    train_instead(evidence_builder, "g5", "g3", at=2)
    evidence_builder.ledger = rewritten


@planted(once_by_trainer=set(members("g3")), same_batches={*members("g3"), *members("g5")})
def trained_twice_and_ledger_and_manifests_rewritten_to_hide_it(evidence_builder: EvidenceBuilder) -> None:
    rewritten, manifests = list(evidence_builder.ledger), list(evidence_builder.manifests)
    train_instead(evidence_builder, "g5", "g3", at=2)
    evidence_builder.ledger, evidence_builder.manifests = rewritten, manifests


@planted(once_by_trainer=set(members("g0")))
def a_micro_batch_fed_twice_under_one_fence(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed.insert(0, evidence_builder.fed[0])


# ---- too stale


@planted(bound_by_ledger=set(members("g5")), bound_by_trainer=set(members("g5")))
def too_stale_and_all_admit_it(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(Generated, of("g5"), span=VersionSpan(0, 2))
    refeed(evidence_builder, "g5", span=VersionSpan(0, 2))


@planted(bound_by_ledger=set(members("g5")), bound_by_trainer=set(members("g5")))
def tokens_of_a_version_to_come(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(Generated, of("g5"), span=VersionSpan(2, 3))
    refeed(evidence_builder, "g5", span=VersionSpan(2, 3))


@planted(bound_by_trainer={"g5.0"}, same_payloads={"g5.0"})
def too_stale_and_only_the_trainer_saw_it(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g5.0", span=VersionSpan(0, 2))


@planted(
    bound_by_ledger={*members("g4"), *members("g5")},
    bound_by_trainer={*members("g4"), *members("g5")},
    within_stamps={"g4", "g5"},
)
def a_buffer_that_was_never_opened(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.rewrite(lambda r: None if isinstance(r, BufferOpened) and r.step == 2 else r)


@planted(
    bound_by_ledger=set(members("g4")),
    bound_by_trainer=set(members("g4")),
    within_stamps={"g4", "g5", "version 3"},
    changes={"step 2"},
)
def a_stamp_that_others_were_reserved_under(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(BufferOpened, lambda r: r.step == 2, max_staleness=0)


@planted(within_stamps={"2"}, changes={"step 2"})
def a_stamp_written_twice(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(BufferOpened(2, 5, "BoundedAsync", 2))


@planted(within_stamps={"g7"})
def reserved_past_the_stamp(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(GroupReserved("g7", 7, 2, 3, 1))


@planted(within_stamps={"g7"}, changes={"step 5"})
def moved_past_the_stamp(evidence_builder: EvidenceBuilder) -> None:
    for step in (4, 5):
        evidence_builder.open(step)
    evidence_builder.reserve("g7", 3)
    evidence_builder.generate("g7", 3)
    evidence_builder.write(GroupMoved("g7", 3, 4), GroupMoved("g7", 4, 5))


@planted(within_stamps={"g6"}, changes={"step 5"})
def displaced_past_the_stamp(evidence_builder: EvidenceBuilder) -> None:
    for step in (4, 5):
        evidence_builder.open(step)
    evidence_builder.reserve("g7", 5)
    evidence_builder.generate("g7", 4)
    evidence_builder.write(GroupMoved("g7", 5, 3, displaced="g6"))


@planted(within_stamps={"g6"})
def moved_while_in_training(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.open(4)
    evidence_builder.train("g6")
    evidence_builder.write(GroupMoved("g6", 3, 4))


@planted(within_stamps={"g6"})
def moved_from_where_it_is_not(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.open(4)
    evidence_builder.write(GroupMoved("g6", 2, 4))


# ---- another pipeline


@planted(changes={"step 4"})
def a_buffer_that_opens_under_the_bound_before(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.pipeline("BoundedAsync", 3)
    evidence_builder.stamp = ("BoundedAsync", 1)
    evidence_builder.open(4)


@planted(changes={"step 4"})
def a_buffer_that_opens_under_the_mode_before(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.pipeline("BoundedAsync", 1)
    evidence_builder.stamp = ("Streaming", 1)
    evidence_builder.open(4)


@planted(changes={"step 5"})
def a_buffer_that_opens_before_a_wider_bound_is_said(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.open(4)
    evidence_builder.open(5)
    evidence_builder.pipeline("BoundedAsync", 2)


@planted(changes={"step 2"})
def a_change_that_binds_an_open_buffer(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.opened = 2
    evidence_builder.pipeline("BoundedAsync", 2)


@planted(within_stamps={"g7"})
def an_entry_in_a_buffer_that_was_trained(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.reserve("g7", 1)


@planted(full_steps={"step 1"}, specs={"step 1"})
def a_step_that_did_not_fill_its_buffer(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(BufferOpened, lambda r: r.step == 1, capacity=3)


@planted(full_steps=set(members("g3")), within_stamps={"g3"})
def trained_in_a_step_where_it_has_no_entry(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(GroupReserved, lambda r: r.group == "g3", step=2, min_version=1)


# ---- sources that disagree


@planted(digests={"g1.0"}, same_payloads={"g1.0"})
def no_payload_digest(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(Generated, lambda r: r.trajectory == "g1.0", digest="")


@planted(digests={"g1.0"})
def no_payload_at_all(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.rewrite(lambda r: None if isinstance(r, Generated) and r.trajectory == "g1.0" else r)


@planted(digests={"g1.1"})
def no_reward_digest(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(Rewarded, lambda r: r.trajectory == "g1.1", digest="")


@planted(digests={"g1.1"})
def no_reward_at_all(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.rewrite(lambda r: None if isinstance(r, Rewarded) and r.trajectory == "g1.1" else r)


@planted(same_payloads={"g1.0"})
def the_trainer_read_other_bytes(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g1.0", digest="other")


@planted(same_payloads={"g6.0"})
def the_stream_has_other_bytes(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.payloads = [
        replace(p, digest="other") if p.trajectory == "g6.0" else p for p in evidence_builder.payloads
    ]


@planted(same_payloads={"g6.1"})
def damaged_bytes_in_the_stream(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.payloads = [replace(p, intact=p.trajectory != "g6.1") for p in evidence_builder.payloads]


@planted(same_rewards={"g6.1"})
def a_reward_that_nobody_gave(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(Rewarded, lambda r: r.trajectory == "g6.1", reward=0.5)


@planted(same_rewards={"g6.1"})
def a_score_for_the_payload_of_another(evidence_builder: EvidenceBuilder) -> None:
    score = next(r for r in evidence_builder.rewards if r.trajectory == "g6.0")
    evidence_builder.rewards.append(replace(score, trajectory="g6.1"))


@planted(same_batches={"version 2"})
def fed_as_another_micro_batch(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed[3] = replace(evidence_builder.fed[3], micro_batch=7)


@planted(same_batches={"version 2"})
def fed_in_another_order(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed[2] = replace(evidence_builder.fed[2], items=evidence_builder.fed[2].items[::-1])


@planted(same_batches=set(members("g2")))
def committed_but_never_fed(evidence_builder: EvidenceBuilder) -> None:
    del evidence_builder.fed[2]


@planted(same_batches=set(members("g6")), bound_by_trainer=set(members("g6")))
def fed_but_never_committed(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed.insert(
        2, FedMicroBatch(0, 2, 1, 1, tuple(evidence_builder.read(t) for t in members("g6")))
    )


@planted(same_batches=set(members("g1")))
def committed_but_never_assigned(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.rewrite(
        lambda r: None if isinstance(r, MicroBatchAssigned) and r.groups == ("g1",) else r
    )


@planted(same_batches={"version 1"})
def assigned_out_of_order(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(MicroBatchAssigned, lambda r: r.groups == ("g0",), micro_batch=5)


@planted(same_batches={*members("g2"), *members("g3")})
def the_log_of_an_attempt_is_missing(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed = [line for line in evidence_builder.fed if line.step != 1]


# ---- versions and attempts


@planted(versions={"version 3"}, same_batches={*members("g2"), *members("g3"), "version 3"})
def a_version_left_out(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.rewrite(lambda r: None if isinstance(r, StepCommitted) and r.version == 2 else r)


@planted(versions={"version 2"}, manifests={"version 2"})
def another_parent(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepCommitted, lambda r: r.version == 2, parent="other")


@planted(manifests={"version 2"})
def no_manifest(evidence_builder: EvidenceBuilder) -> None:
    del evidence_builder.manifests[1]


@planted(manifests={"version 2"})
def an_altered_manifest(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.manifests[1] = replace(evidence_builder.manifests[1], intact=False)


@planted(manifests={"version 2"})
def a_manifest_of_another_commit(evidence_builder: EvidenceBuilder) -> None:
    proposal = evidence_builder.manifests[1].proposal
    assert proposal is not None
    evidence_builder.manifests[1] = replace(
        evidence_builder.manifests[1], proposal=replace(proposal, random_state="other")
    )


@planted(manifests={"version 3"})
def another_digest_in_the_ledger(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepCommitted, lambda r: r.version == 3, manifest="other")


@planted(attempts={"attempt 0"})
def a_trainer_attempt_that_goes_back(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(TrainerAttempt(0, 1, 3))


@planted(attempts={"version 1", "version 2", "version 3"})
def commits_of_a_fenced_attempt(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(TrainerAttempt, lambda r: True, attempt=2)


@planted(attempts={"g6.0"})
def a_result_of_an_attempt_that_lost_it(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(SiblingReset("g6.0", 2, "EngineLost", False))
    evidence_builder.write(Rewarded("g6.0", 1, 1.0, "r"))


@planted(attempts={"g6.0"})
def a_sibling_that_goes_back(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(SiblingReset("g6.0", 1, "EngineLost", False))


@planted(attempts={"g6"})
def planned_twice(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.reserve("g6", 3)


@planted(sources={"3"})
def a_hole_in_the_ledger(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.lost.add(3)


@planted(sources=set())
def something_unreadable(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.unreadable.append("ledger message 7 is no record batch")


@planted(sources={"1"}, snapshots={"snapshot 2"})
def a_claim_for_another_job(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(EpochClaimed, lambda r: True, job="another")


# ---- commits that were taken back


@planted(
    restored,
    same_batches={*members("g9"), *members("g10")},
    digests={*members("g9"), *members("g10")},
)
def restored_but_never_fed(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed = [line for line in evidence_builder.fed if line.step != 4]


@planted(restored, bound_by_trainer={"g9.0"})
def restored_past_the_bound_of_its_commit(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g9.0", span=VersionSpan(1, 4))


@planted(restored, same_payloads={"g6.0"})
def restored_with_an_attempt_that_was_given_up(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g6.0", attempt=0)


@planted(restored, same_payloads={"g6.0"})
def restored_with_other_bytes_than_the_ledger_knows(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g6.0", attempt=1)


@planted(restored, one_ending={"g9.0"}, same_batches={"g9.0"})
def restored_without_a_sibling(evidence_builder: EvidenceBuilder) -> None:
    change_restored(evidence_builder, 5, micro_batches=(("g9.1",), members("g10")))


@planted(
    restored,
    once_by_ledger=set(members("g0")),
    once_by_manifests=set(members("g0")),
    same_batches={*members("g0"), *members("g9")},
    digests=set(members("g0")),
    prompts={"g11"},
)
def restored_of_what_was_trained_before(evidence_builder: EvidenceBuilder) -> None:
    change_restored(evidence_builder, 5, micro_batches=(members("g0"), members("g10")))


@planted(restored, within_stamps={"g7"}, causes={"g7"})
def restored_and_a_group_left_in_its_buffer(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepRestored, lambda r: r.commit.version == 4, moved={})


@planted(restored, within_stamps={"g7"}, causes={"g7"})
def restored_and_a_group_moved_to_where_no_buffer_is(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepRestored, lambda r: r.commit.version == 4, moved={"g7": 7})


@planted(restored, causes={"g99"})
def restored_and_an_unknown_group_dropped(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepRestored, lambda r: r.commit.version == 5, dropped=("g7", "g99"))


@planted(restored, full_steps={"step 3"}, specs={"step 3"})
def restored_of_fewer_groups_than_its_buffer_has(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(BufferOpened, lambda r: r.step == 3, capacity=3)


@planted(restored, versions={"version 5", "version 6"})
def restored_from_another_chain(evidence_builder: EvidenceBuilder) -> None:
    change_restored(evidence_builder, 5, parent="other")
    evidence_builder.alter(StepCommitted, lambda r: r.version == 6, parent="other")
    manifest = evidence_builder.manifests[-1]
    assert manifest.proposal is not None
    evidence_builder.manifests[-1] = replace(manifest, proposal=replace(manifest.proposal, parent="other"))


# ---- going back


@planted(
    revoked,
    once_by_ledger=set(members("g2")),
    once_by_trainer=set(members("g2")),
    once_by_manifests=set(members("g2")),
    one_ending={"g2"},
)
def what_was_revoked_is_trained_again(evidence_builder: EvidenceBuilder) -> None:
    train_instead(evidence_builder, "g7", "g2", at=1)


@planted(revoked, versions={"version 1"})
def back_to_other_weights(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(VersionsRevoked, lambda r: True, manifest="other")


@planted(revoked, versions={"version 1"})
def back_over_another_number_of_trajectories(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(VersionsRevoked, lambda r: True, trajectories=6)


@planted(revoked, versions={"version 1"})
def back_to_an_optimizer_of_later(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(VersionsRevoked, lambda r: True, checkpoint="step-000002", checkpoint_version=2)


@planted(revoked, versions={"version 2"}, manifests={"version 2"})
def on_from_what_was_revoked(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(StepCommitted, lambda r: (r.version, r.attempt) == (2, 2), parent="m-3-1-1")


@planted(revoked, attempts={"attempt 2"})
def a_trainer_that_goes_on_from_what_was_revoked(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(TrainerAttempt, lambda r: r.attempt == 2, version=3)


@planted(revoked, within_stamps={"g9", "g10"}, bound_by_ledger=G9_G10, bound_by_trainer=G9_G10)
def a_buffer_of_before_that_was_not_opened_again(evidence_builder: EvidenceBuilder) -> None:
    last = [r for r in evidence_builder.records() if isinstance(r, BufferOpened) and r.step == 2][-1]
    evidence_builder.rewrite(lambda r: None if r is last else r)


# ---- snapshots


@planted(snapshots={f"snapshot {len(job().ledger) + 1}"}, same_rewards={"g6.0"})
def a_snapshot_of_other_scores(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.snapshot()
    evidence_builder.alter(Rewarded, lambda r: r.trajectory == "g6.0", reward=0.5)


@planted(snapshots={f"snapshot {len(job().ledger) + 1}"})
def a_damaged_snapshot(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.snapshot()
    evidence_builder.ledger[-1] = replace(evidence_builder.ledger[-1], snapshot=b"damaged")


@planted(snapshots={f"snapshot {len(job().ledger) + 2}"}, one_ending={"g0"}, causes={"g0"})
def a_snapshot_after_records_that_contradict_one_another(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.snapshot()
    evidence_builder.ledger.insert(-1, Entry(evidence_builder.writer, (GroupAborted("g0", "TooLong"),)))


@planted(specs={"step 3", "g6"})
def sizes_that_are_not_in_the_spec(evidence_builder: EvidenceBuilder) -> None:
    """All steps before have other sizes than the spec's, too, but only the open one is altered here."""
    evidence_builder.alter(BufferOpened, lambda r: r.step == 3, capacity=4)
    evidence_builder.alter(GroupReserved, lambda r: r.group == "g6", siblings=8)


@planted(specs={"spec.reward.functions", "spec.data.seed"})
def immutable_fields_that_changed_with_the_coordinator(evidence_builder: EvidenceBuilder) -> None:
    other = {**SPEC, "data": {**SPEC["data"], "seed": 2}, "reward": {"functions": ["another"]}}
    evidence_builder.coordinator(2, "two", other)


@planted()
def a_spec_that_changed_with_the_coordinator(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.coordinator(2, "two", {**SPEC, "algorithm": {"scaleByStd": False}})


NEXT = f"message {len(job().ledger) + 1}"


@planted()
def a_change_that_restarts_no_coordinator(evidence_builder: EvidenceBuilder) -> None:
    for replicas in (2, 3):
        evidence_builder.write(SpecInForce({**SPEC, "reward": {**SPEC["reward"], "replicas": replicas}}))


@planted(specs={NEXT}, sources={"message 1"})
def a_spec_of_no_coordinator(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.began_under()
    evidence_builder.write(SpecInForce(SPEC))


@planted(specs={NEXT})
def a_coordinator_that_read_another_spec_than_it_began_with(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(SpecInForce({**SPEC, "algorithm": {"scaleByStd": False}}))


@planted(specs={NEXT, "spec.data.seed"})
def a_coordinator_that_read_other_prompts_than_it_began_with(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.write(SpecInForce({**SPEC, "data": {**SPEC["data"], "seed": 2}}))


@planted(specs={NEXT})
def a_spec_with_a_pipeline_that_was_not_in_force(evidence_builder: EvidenceBuilder) -> None:
    pipeline = {"mode": "BoundedAsync", "maxStaleness": BOUND + 1}
    evidence_builder.write(SpecInForce({**SPEC, "pipeline": pipeline}))


@planted(specs={"message 1"})
def a_claim_with_two_specs(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.began_under(SPEC, SPEC)


@planted(sources={f"message {len(job().ledger) + 1}"})
def a_claim_whose_spec_was_removed(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.claim(2, "two")
    evidence_builder.trainer(3)


@planted()
def a_claim_of_a_rollback(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.claim(2, "two")
    evidence_builder.revoke(evidence_builder.version)


@planted(unaltered={"version 2"})
def a_manifest_that_names_the_ledger_before_its_step_was_assigned(evidence_builder: EvidenceBuilder) -> None:
    name_ledger(evidence_builder, 2, "c1")


@planted()
def a_manifest_that_names_the_ledger_as_its_step_was_assigned(evidence_builder: EvidenceBuilder) -> None:
    name_ledger(evidence_builder, 2, f"c{place_of_commit(evidence_builder, 2) - 1}")


@planted(unaltered={"version 2"})
def a_manifest_that_names_the_ledger_after_its_commit(evidence_builder: EvidenceBuilder) -> None:
    name_ledger(evidence_builder, 2, f"c{place_of_commit(evidence_builder, 2)}")


def place_of_commit(evidence_builder: EvidenceBuilder, version: int) -> int:
    """Sequence of the message that commits a version."""
    return 1 + next(
        n
        for n, e in enumerate(evidence_builder.ledger)
        for r in e.records
        if isinstance(r, StepCommitted) and r.version == version
    )


def name_ledger(evidence_builder: EvidenceBuilder, version: int, digest: str) -> None:
    """A version's manifest and commit have this digest of the ledger."""
    evidence_builder.alter(StepCommitted, lambda r: r.version == version, ledger=digest)
    for n, m in enumerate(evidence_builder.manifests):
        if m.version == version and m.proposal is not None:
            evidence_builder.manifests[n] = replace(m, proposal=replace(m.proposal, ledger=digest))


# ---- prompts, rewards and reports


@planted(prompts={"g6"})
def a_prompt_that_is_skipped(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(GroupReserved, lambda r: r.group == "g6", prompt=7)
    evidence_builder.payloads = [replace(p, prompt=None) for p in evidence_builder.payloads]


@planted(prompts={"g1", "g2"})
def one_prompt_planned_under_two_groups(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.alter(GroupReserved, lambda r: r.group == "g1", prompt=0)
    refeed(evidence_builder, "g1", prompt=0)


@planted(prompts={"g2.0"})
def a_payload_that_answers_another_prompt(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g2.0", prompt=9)


@planted(trained_rewards={"g2.0", "g2.1"})
def the_trainer_was_sent_another_reward(evidence_builder: EvidenceBuilder) -> None:
    refeed(evidence_builder, "g2.0", reward=0.5)


@planted(evaluations={"version 2"})
def a_mean_reward_that_was_published_otherwise(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.metrics[1] = replace(evidence_builder.metrics[1], reward_mean=0.75)


@pytest.mark.parametrize("name", PLANTED)
def test_sees_exactly_what_was_planted(name: str) -> None:
    clean, plant, expected = PLANTED[name]
    evidence_builder = clean()
    plant(evidence_builder)
    assert verdict(evidence_builder) == expected


# ---- how to break a job


def train_instead(evidence_builder: EvidenceBuilder, group: str, other: str, *, at: int) -> None:
    """Let all sources say that `other` was trained in step `at` where `group` was."""

    def named(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(i.replace(group, other) for i in ids)

    def commit(record: StepCommitted) -> StepCommitted:
        return replace(record, micro_batches=tuple(named(batch) for batch in record.micro_batches))

    def change(record: Record) -> Record:
        match record:
            case MicroBatchAssigned(step=step) if step == at:
                return replace(record, groups=named(record.groups))
            case StepCommitted(version=version) if version == at + 1:
                return commit(record)
        return record

    evidence_builder.rewrite(change)
    evidence_builder.manifests = [
        replace(m, proposal=commit(m.proposal)) if m.version == at + 1 and m.proposal is not None else m
        for m in evidence_builder.manifests
    ]
    payloads = {r.trajectory: r for r in evidence_builder.records() if isinstance(r, Generated)}

    def item(fed: FedTrajectory) -> FedTrajectory:
        trajectory = fed.trajectory.replace(group, other)
        payload = payloads.get(trajectory)
        if trajectory == fed.trajectory or payload is None:
            return replace(fed, trajectory=trajectory)
        return evidence_builder.fed_of(payload)

    evidence_builder.fed = [
        replace(line, items=tuple(map(item, line.items))) if line.step == at else line
        for line in evidence_builder.fed
    ]


def restores(record: Record, version: int) -> bool:
    return isinstance(record, StepRestored) and record.commit.version == version


def change_restored(evidence_builder: EvidenceBuilder, version: int, **changes: Any) -> None:
    """Let manifest and ledger say something else of a commit that was taken back."""
    evidence_builder.rewrite(
        lambda r: replace(r, commit=replace(r.commit, **changes)) if restores(r, version) else r  # type: ignore[union-attr]
    )
    evidence_builder.manifests = [
        replace(m, proposal=replace(m.proposal, **changes))
        if m.version == version and m.proposal is not None
        else m
        for m in evidence_builder.manifests
    ]


def refeed(evidence_builder: EvidenceBuilder, name: str, **changes: Any) -> None:
    """Change what the trainer's log says about a trajectory, or about all of a group."""
    evidence_builder.fed = [
        replace(
            line,
            items=tuple(
                replace(i, **changes) if name in (i.trajectory, group_of(i.trajectory)) else i
                for i in line.items
            ),
        )
        for line in evidence_builder.fed
    ]


# ---------------------------------------------------------------------------------------------- what it prints


def test_prints_a_table_with_the_offending_ids() -> None:
    evidence_builder = job()
    train_instead(evidence_builder, "g5", "g3", at=2)
    out = StringIO()
    print_table(Console(file=out, width=120), audit(evidence_builder.evidence()))
    text = out.getvalue()
    assert "✗ none was trained twice, by the ledger" in text
    assert "g3.0 was trained in steps 1 and 2" in text
    assert "✓  versions follow one another" in text
    assert "14 trajectories planned: 12 consumed, aborted 0, 4 still open; 3 versions" in text
    assert "verdict: violated" in text


def test_json_has_the_same_findings() -> None:
    findings = audit(job().evidence())
    content = json.loads(as_text(findings))
    assert content["verdict"] == "holds"
    assert content["counts"]["consumed"] == 12
    assert [check["name"] for check in content["checks"]] == [check.name for check in findings.checks]
