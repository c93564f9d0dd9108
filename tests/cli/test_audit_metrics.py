"""Lines of metrics that the ledger does not bear out: which are honest, and which were invented."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evidence_builder import Story, job

from rljob_cli.audit import audit
from rljob_cli.audit.evidence import Evidence, Verdict
from rljob_core.messages import StepMetrics
from rljob_core.records import Evaluated, GroupAborted

SPEC: dict[str, Any] = {
    "steps": 9,
    "data": {"promptsPerStep": 2, "groupSize": 2, "seed": 1},
    "algorithm": {"scaleByStd": True},
    "reward": {"functions": ["exact_match"]},
    "evaluation": {"everySteps": 2, "samples": 4},
}


def evaluation(version: int, sampled: float = 0.5) -> StepMetrics:
    return StepMetrics(version, version, 1.0, heldout_sampled=sampled, heldout_greedy=0.5)


def with_lines(*lines: StepMetrics, coordinators: int = 1) -> Story:
    """Three steps, evaluations of versions 0 and 2, and these lines besides."""
    story = job()
    story.began_under(SPEC)
    story.write(Evaluated(0, 0.5, 0.5, 4))
    for number in range(2, coordinators + 1):
        story.coordinator(number * 1_000_000, f"c{number}", SPEC)
    story.write(Evaluated(2, 0.5, 0.5, 4))
    story.metrics += lines
    return story


def verdict(evidence: Evidence) -> Verdict:
    return audit(evidence).verdict


def test_a_line_may_be_missing() -> None:
    story = with_lines()
    story.metrics.clear()
    assert verdict(story.evidence()) is Verdict.HOLDS


def test_another_score_is_of_a_coordinator_that_was_replaced_or_invented() -> None:
    assert verdict(with_lines(evaluation(2)).evidence()) is Verdict.HOLDS
    assert verdict(with_lines(evaluation(2, 0.9)).evidence()) is Verdict.VIOLATED
    assert verdict(with_lines(evaluation(2, 0.9), coordinators=2).evidence()) is Verdict.HOLDS
    after = replace(evaluation(2, 0.9), epoch=3)
    assert verdict(with_lines(after, coordinators=2).evidence()) is Verdict.VIOLATED


def test_an_evaluation_without_a_record_was_lost_or_invented() -> None:
    def without_record(*, coordinators: int) -> Story:
        story = with_lines(evaluation(2), coordinators=coordinators)
        story.rewrite(lambda r: None if isinstance(r, Evaluated) and r.version == 2 else r)
        return story

    assert verdict(without_record(coordinators=1).evidence()) is Verdict.UNFINISHED
    assert verdict(without_record(coordinators=2).evidence()) is Verdict.HOLDS
    assert verdict(with_lines(evaluation(1), coordinators=2).evidence()) is Verdict.VIOLATED  # not due
    assert (
        verdict(with_lines(evaluation(4), coordinators=2).evidence()) is Verdict.UNFINISHED
    )  # no such version


def test_another_line_of_a_step_is_of_a_version_that_was_begun_again_or_invented() -> None:
    """Another version of the number has left its manifest, and an earlier coordinator its line."""
    story = job()
    story.rewrite(lambda r: replace(r, epoch=2_000_000) if hasattr(r, "epoch") else r)
    story.fed = [replace(line, epoch=2_000_000) for line in story.fed]
    story.manifests = [
        replace(m, proposal=replace(m.proposal, epoch=2_000_000)) for m in story.manifests if m.proposal
    ]
    other = StepMetrics(3, 3, 1.0, reward_mean=0.25, epoch=1)
    story.metrics.append(other)
    assert verdict(story.evidence()) is Verdict.VIOLATED
    left = replace(story.manifest(3), key="v3-a0", digest="other", proposal=None)
    story.manifests.append(left)
    assert verdict(story.evidence()) is Verdict.HOLDS
    story.metrics.append(replace(other, epoch=2))
    assert verdict(story.evidence()) is Verdict.VIOLATED


def test_a_run_at_work_may_be_ahead_of_the_ledger_that_was_read_and_say_that_it_runs() -> None:
    story = with_lines(evaluation(4), StepMetrics(4, 4, 1.0, reward_mean=1.0))
    assert verdict(story.evidence()) is Verdict.UNFINISHED
    assert verdict(replace(story.evidence(), in_use=True)) is Verdict.HOLDS

    story = job()
    story.finish()
    story.write(GroupAborted("g6", "JobFinished"))
    killed = replace(story.evidence(), summary={"exit": "Running"})
    assert verdict(killed) is Verdict.DAMAGED
    assert verdict(replace(killed, in_use=True)) is Verdict.HOLDS
