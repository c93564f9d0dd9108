"""Lines of metrics that the ledger does not bear out: which are honest, and which were invented."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_builder import EvidenceBuilder, job, members, refuted

from rljob_cli.audit import audit
from rljob_cli.audit.audited_run import AuditedRun
from rljob_cli.audit.evidence import Evidence, Verdict
from rljob_cli.audit.streams import metrics_lines
from rljob_core.messages import STEP_METRICS, StepMetrics, StepStats
from rljob_core.records import Evaluated, GroupAborted, Rewarded

SPEC: dict[str, Any] = {
    "steps": 9,
    "data": {"promptsPerStep": 2, "groupSize": 2, "seed": 1},
    "algorithm": {"scaleByStd": True},
    "reward": {"functions": ["exact_match"]},
    "evaluation": {"everySteps": 2, "samples": 4, "groupSize": 1},
}


def evaluation(version: int, sampled: float = 0.5) -> StepMetrics:
    return StepMetrics(version, version, 1.0, heldout_sampled=sampled, heldout_greedy=0.5)


def with_lines(*lines: StepMetrics, coordinators: int = 1) -> EvidenceBuilder:
    """Three steps, evaluations of versions 0 and 2, and these lines besides."""
    evidence_builder = job()
    evidence_builder.began_under(SPEC)
    evidence_builder.write(Evaluated(0, 0.5, 0.5, 4, 8))
    for number in range(2, coordinators + 1):
        evidence_builder.coordinator(number * 1_000_000, f"c{number}", SPEC)
    evidence_builder.write(Evaluated(2, 0.5, 0.5, 4, 8))
    evidence_builder.metrics += lines
    return evidence_builder


def verdict(evidence: Evidence) -> Verdict:
    return audit(evidence).verdict


def test_a_mean_is_of_all_that_was_scored_and_says_beside_it_what_was_trained() -> None:
    evidence_builder = job()
    algorithm = {"scaleByStd": True, "dropUniformGroups": True}
    evidence_builder.began_under({**SPEC, "algorithm": algorithm})
    evidence_builder.write(Evaluated(0, 0.5, 0.5, 4, 8), Evaluated(2, 0.5, 0.5, 4, 8))
    evidence_builder.alter(Rewarded, lambda r: r.trajectory in members("g6"), reward=0.0)
    evidence_builder.write(GroupAborted("g6", "UniformGroup"))
    evidence_builder.payloads.clear()
    evidence_builder.rewards.clear()
    for group in ("g7", "g8"):
        evidence_builder.reserve(group, 3)
        evidence_builder.generate(group, 3)
        evidence_builder.ready(group, 3, 3)
        evidence_builder.train(group, last=group == "g8")
    evidence_builder.commit()
    line = evidence_builder.metrics.pop()
    for scored, trained, expected in (
        (4 / 6, 1.0, Verdict.HOLDS),
        (1.0, 1.0, Verdict.VIOLATED),
        (4 / 6, 4 / 6, Verdict.VIOLATED),
    ):
        said = replace(line, reward_mean=scored, reward_mean_trained=trained)
        evidence = replace(evidence_builder.evidence(), metrics=(said,))
        assert verdict(evidence) is expected, (scored, trained)


def test_only_a_rollback_of_the_ledger_takes_lines_away_and_only_what_is_published_counts() -> None:
    line = StepMetrics(2, 2, 1.0, reward_mean=1.0, writer=1)
    gone_back = StepMetrics(1, 1, 1.0, gone_back=True, writer=2)
    evidence_builder = job()
    evidence_builder.claim(2, "user")
    evidence_builder.revoke(1)
    cases: dict[str, tuple[StepMetrics, int]] = {
        "": (gone_back, 1),
        "of a lost rollback": (replace(gone_back, writer=3), 2),
        "tells of a rollback by the writer epoch 1": (replace(gone_back, writer=1), 2),
        "names no writer epoch": (replace(line, writer=0), 2),
        "is of step 9": (replace(line, step=9), 2),
        "figures of a step": (replace(line, reward_mean=None, stats=StepStats()), 2),
        "figures of an evaluation": (replace(line, heldout_greedy=1.0), 2),
    }
    for wrong, (last, left) in cases.items():
        unreadable: list[str] = []
        lines = [replace(line, version=1, step=1), line, last]
        kept = metrics_lines(
            [STEP_METRICS.dump_json(one) for one in lines], evidence_builder.evidence().ledger, unreadable
        )
        assert len(kept) == left, wrong
        named = bool(wrong) and "lost" not in wrong
        assert [wrong in text for text in unreadable] == [True] * named


def test_a_line_may_be_missing() -> None:
    evidence_builder = with_lines()
    evidence_builder.metrics.clear()
    assert verdict(evidence_builder.evidence()) is Verdict.HOLDS


def test_another_score_is_of_a_coordinator_that_was_replaced_or_invented() -> None:
    assert verdict(with_lines(evaluation(2)).evidence()) is Verdict.HOLDS
    assert verdict(with_lines(evaluation(2, 0.9)).evidence()) is Verdict.VIOLATED
    assert verdict(with_lines(evaluation(2, 0.9), coordinators=2).evidence()) is Verdict.HOLDS
    after = replace(evaluation(2, 0.9), epoch=3)
    assert verdict(with_lines(after, coordinators=2).evidence()) is Verdict.VIOLATED


def test_answers_without_a_score_are_counted_and_too_many_leave_none() -> None:
    def evaluated(**changes: Any) -> EvidenceBuilder:
        built = with_lines()
        built.rewrite(lambda r: replace(r, **changes) if isinstance(r, Evaluated) and r.version == 2 else r)
        return built

    failed = evaluated(sampled=None, greedy=None, failed=2, error="prompt 1: RewardRaised: no")
    findings = audit(failed.evidence())
    assert findings.verdict is Verdict.HOLDS
    assert findings.counts["unscored_answers"] == [
        {"version": 2, "failed": 2, "answers": 8, "error": "prompt 1: RewardRaised: no"}
    ]
    assert verdict(evaluated(failed=2).evidence()) is Verdict.VIOLATED
    failed.metrics.append(evaluation(2))
    assert verdict(failed.evidence()) is Verdict.VIOLATED


def in_epoch(evidence_builder: EvidenceBuilder, epoch: int) -> None:
    """Let the coordinator of this epoch have written everything."""
    evidence_builder.rewrite(lambda r: replace(r, epoch=epoch) if hasattr(r, "epoch") else r)
    evidence_builder.fed = [replace(line, epoch=epoch) for line in evidence_builder.fed]
    evidence_builder.manifests = [
        replace(m, proposal=replace(m.proposal, epoch=epoch))
        for m in evidence_builder.manifests
        if m.proposal
    ]


def test_a_coordinator_publishes_no_second_evaluation_of_a_version() -> None:
    """Its record is lost only if it is replaced; its claim may be lost as well, which trainers testify to."""
    evidence_builder = with_lines(replace(evaluation(2, 0.9), epoch=2), coordinators=2)
    assert verdict(evidence_builder.evidence()) is Verdict.VIOLATED
    lost = replace(evidence_builder.manifest(3), key="v3-a0", digest="other")
    assert lost.proposal is not None
    evidence_builder.manifests.append(replace(lost, proposal=replace(lost.proposal, epoch=2_000_007)))
    assert verdict(evidence_builder.evidence()) is Verdict.HOLDS


def test_a_coordinator_whose_claim_is_lost_is_known_by_its_number() -> None:
    """Nothing else may be left of it: it was replaced before it trained anything, and the next one counts the same."""
    (claimed,) = {c.number for _, c in AuditedRun.of(with_lines().evidence()).history.records.claims}
    for number, epoch, expected in (
        (claimed + 7, 0, Verdict.HOLDS),
        (claimed, 0, Verdict.VIOLATED),
        (0, 0, Verdict.VIOLATED),
        (claimed + 7, 1, Verdict.VIOLATED),
        (3_000_007, 3, Verdict.VIOLATED),
    ):
        line = replace(evaluation(2, 0.9), epoch=epoch, writer=number)
        assert verdict(with_lines(line).evidence()) is expected, (number, epoch)


def test_a_version_is_not_evaluated_before_its_time() -> None:
    evidence_builder = with_lines(replace(evaluation(2, 0.9), epoch=1), coordinators=2)
    assert verdict(evidence_builder.evidence()) is Verdict.HOLDS
    in_epoch(evidence_builder, 2_000_000)
    assert verdict(evidence_builder.evidence()) is Verdict.VIOLATED


def test_an_evaluation_without_a_record_was_lost_or_invented() -> None:
    def without_record(*, coordinators: int) -> EvidenceBuilder:
        evidence_builder = with_lines(evaluation(2), coordinators=coordinators)
        evidence_builder.rewrite(lambda r: None if isinstance(r, Evaluated) and r.version == 2 else r)
        return evidence_builder

    assert verdict(without_record(coordinators=1).evidence()) is Verdict.UNFINISHED
    assert verdict(without_record(coordinators=2).evidence()) is Verdict.HOLDS
    assert verdict(with_lines(evaluation(1), coordinators=2).evidence()) is Verdict.VIOLATED  # not due
    assert (
        verdict(with_lines(evaluation(4), coordinators=2).evidence()) is Verdict.UNFINISHED
    )  # no such version


def test_another_line_of_a_step_is_of_a_version_that_was_begun_again_or_invented() -> None:
    """Another version of the number has left its manifest, and an earlier coordinator its line."""
    evidence_builder = job()
    in_epoch(evidence_builder, 2_000_000)
    other = StepMetrics(3, 3, 1.0, reward_mean=0.25, epoch=1)
    evidence_builder.metrics.append(other)
    assert verdict(evidence_builder.evidence()) is Verdict.VIOLATED
    left = replace(evidence_builder.manifest(3), key="v3-a0", digest="other", proposal=None)
    evidence_builder.manifests.append(left)
    assert verdict(evidence_builder.evidence()) is Verdict.HOLDS
    evidence_builder.metrics.append(replace(other, epoch=2))
    assert verdict(evidence_builder.evidence()) is Verdict.VIOLATED


def test_a_run_at_work_may_be_ahead_of_the_ledger_that_was_read_and_say_that_it_runs() -> None:
    evidence_builder = with_lines(evaluation(4), StepMetrics(4, 4, 1.0, reward_mean=1.0))
    assert verdict(evidence_builder.evidence()) is Verdict.UNFINISHED
    assert verdict(replace(evidence_builder.evidence(), in_use=True)) is Verdict.HOLDS

    evidence_builder = job()
    evidence_builder.finish()
    evidence_builder.write(GroupAborted("g6", "JobFinished"))
    killed = replace(evidence_builder.evidence(), summary={"exit": "Running"})
    assert verdict(killed) is Verdict.DAMAGED
    assert verdict(replace(killed, in_use=True)) is Verdict.HOLDS


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"steps": 3, "staleness_max": 1, "heldout_reward_before": 0.5}, Verdict.HOLDS),
        (
            {"steps": 1, "trajectories": {"consumed": 4, "aborted": {}}, "heldout_mixed_after": 0},
            Verdict.HOLDS,
        ),
        ({"steps": 9}, Verdict.UNFINISHED),
        ({"trajectories": {"consumed": 13}}, Verdict.UNFINISHED),
        ({"trajectories": {"aborted": {"PayloadLost": 2}}}, Verdict.UNFINISHED),
        ({"attempts_failed": {"EngineLost": 1}}, Verdict.UNFINISHED),
        ({"staleness_max": 4}, Verdict.UNFINISHED),
        ({"heldout_reward_after": 0.9}, Verdict.UNFINISHED),
        ({"steps": -1}, Verdict.VIOLATED),
        ({"steps": "three"}, Verdict.VIOLATED),
        ({"trajectories": 7}, Verdict.VIOLATED),
    ],
)
def test_the_summary_of_an_open_job_is_not_ahead_of_the_ledger(
    said: dict[str, Any], expected: Verdict
) -> None:
    summary = {"exit": "Interrupted", **said}
    found = audit(replace(with_lines().evidence(), summary=summary)).checks
    (check,) = (one for one in found if one.name == "summary")
    assert {one.verdict for one in check.violations} == {expected} - {Verdict.HOLDS}


def test_the_summary_has_a_score_that_was_published() -> None:
    """Of an evaluation that was repeated it may have either, and no other."""
    evidence_builder = with_lines(evaluation(2, 0.9), coordinators=2)
    evidence_builder.finish()
    for score, holds in ((0.5, True), (0.9, True), (0.7, False)):
        summary = {"exit": "Succeeded", "heldout_reward_after": score}
        found = refuted(audit(replace(evidence_builder.evidence(), summary=summary)).checks)
        assert ("summary" not in found) is holds


def published(built: EvidenceBuilder, **changes: Any) -> StepMetrics:
    """The line of version 3, as its coordinator publishes it."""
    history = AuditedRun.of(built.evidence()).history
    moment = history.moments["commit", 3]
    told = {field: value for field, value in moment.told.items() if field != "failure"}
    line = StepMetrics(3, 3, 1.0, reward_mean=1.0, epoch=0, writer=moment.writer, **told)  # type: ignore[arg-type]
    return replace(line, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"trajectories": {"planned": 14, "generated": 14, "consumed": 12, "resumed": 1}},
        {"trajectories": {}},
        {"aborted": {"PromptExhausted": 2}},
        {"attempts_failed": {"EngineLost": 1}},
        {"trainer_attempt": 2},
        {"epoch": 1},
        {"pipeline": None},
    ],
)
def test_a_line_says_of_the_job_what_the_ledger_had_then(changes: dict[str, Any]) -> None:
    built = job()
    for line, expected in (
        (published(built), Verdict.HOLDS),
        (published(built, **changes), Verdict.VIOLATED),
    ):
        for source in ("metrics", "metrics_file"):
            evidence = replace(built.evidence(), **{"metrics": (), source: (line,)})
            assert verdict(evidence) is expected, (source, line)


def test_the_file_and_the_stream_of_metrics_are_copies() -> None:
    built = job()
    line = published(built)
    for row, expected in (
        (line, Verdict.HOLDS),
        (replace(line, tokens_per_second=2.0), Verdict.DAMAGED),
        (replace(line, reward_parts={"exact_match": 0.5}), Verdict.DAMAGED),
    ):
        evidence = replace(built.evidence(), metrics=(line,), metrics_file=(row,))
        assert verdict(evidence) is expected, row
