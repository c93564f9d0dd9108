"""A ledger that ends before other evidence does: what follows its end is checked, and what is lost is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from evidence_builder import JOB, Entry, EvidenceBuilder, job, members, refuted

from rljob_cli.audit import audit
from rljob_cli.audit.evidence import Findings, ManifestFile, Verdict
from rljob_cli.audit.table import EXIT_CODES, as_text
from rljob_core.messages import StepMetrics, VersionAnnounced
from rljob_core.records import EpochClaimed, Evaluated, GroupAborted, StepCommitted, Writer
from rljob_core.trajectory import VersionSpan


def audited(evidence_builder: EvidenceBuilder, **changes: object) -> Findings:
    return audit(replace(evidence_builder.evidence(), **changes))


def announcement(file: ManifestFile) -> VersionAnnounced:
    """What a coordinator tells engines of a version."""
    return VersionAnnounced(1, file.version, file.key, file.digest)


def place(evidence_builder: EvidenceBuilder, version: int) -> int:
    """The index of the message that commits a version."""
    return next(
        n
        for n, entry in enumerate(evidence_builder.ledger)
        if any(isinstance(r, StepCommitted) and r.version == version for r in entry.records)
    )


def cut(version: int) -> EvidenceBuilder:
    """A job of three versions whose ledger ends before the commit of this one."""
    evidence_builder = job()
    del evidence_builder.ledger[place(evidence_builder, version) :]
    return evidence_builder


def test_a_cut_ledger_is_unfinished_and_names_the_versions_that_only_a_resume_restores() -> None:
    findings = audited(cut(2))
    assert refuted(findings.checks) == {
        "sources": {"version 2"}
    }  # nothing proves that version 3 was committed
    assert findings.verdict is Verdict.UNFINISHED
    findings = audited(cut(2), announced=(announcement(job().manifests[-1]),))
    assert refuted(findings.checks) == {"sources": {"version 2", "version 3"}}
    assert findings.verdict is Verdict.UNFINISHED


def test_the_trainers_next_step_proves_a_commit_without_any_other_source() -> None:
    evidence_builder = cut(3)
    evidence_builder.fed.append(replace(evidence_builder.fed[-1], step=3, micro_batch=0))
    assert refuted(audited(evidence_builder).checks)["sources"] == {"version 3"}


def test_a_proposal_that_nothing_followed_may_be_uncommitted() -> None:
    assert audited(cut(3)).verdict is Verdict.HOLDS


def test_numbers_of_messages_that_were_lost_before_a_claim_are_no_hole() -> None:
    evidence_builder = job()
    evidence_builder.lost.add(len(evidence_builder.ledger) + 1)
    evidence_builder.claim(2, "two")
    assert audited(evidence_builder).verdict is Verdict.HOLDS


def test_a_ledger_that_grew_while_the_rest_was_read_lacks_nothing() -> None:
    assert audited(cut(2), growing=True).verdict is Verdict.HOLDS


def fed_twice(evidence_builder: EvidenceBuilder) -> None:
    """Version 2 trained g0 again, and says so."""
    manifest = evidence_builder.manifests[1]
    assert manifest.proposal is not None
    batches = (members("g0"), members("g3"))
    evidence_builder.manifests[1] = replace(
        manifest, proposal=replace(manifest.proposal, micro_batches=batches)
    )


def fed_twice_by_the_log_alone(evidence_builder: EvidenceBuilder) -> None:
    n = next(n for n, line in enumerate(evidence_builder.fed) if line.step == 1)
    evidence_builder.fed[n] = replace(evidence_builder.fed[n], items=evidence_builder.fed[0].items)


def past_the_bound(evidence_builder: EvidenceBuilder) -> None:
    evidence_builder.fed = [
        replace(line, items=tuple(replace(i, span=VersionSpan(0, 2)) for i in line.items))
        if line.step == 2
        else line
        for line in evidence_builder.fed
    ]


@pytest.mark.parametrize(
    ("lie", "claim"),
    [
        (fed_twice, "once-by-manifests"),
        (fed_twice_by_the_log_alone, "once-by-trainer"),
        (past_the_bound, "bound-by-trainer"),
    ],
)
def test_what_was_trained_after_the_end_is_checked(
    lie: Callable[[EvidenceBuilder], None], claim: str
) -> None:
    evidence_builder = cut(2)
    lie(evidence_builder)
    findings = audited(evidence_builder, announced=(announcement(evidence_builder.manifests[-1]),))
    assert claim in refuted(findings.checks)
    assert findings.verdict is Verdict.VIOLATED


def break_the_chain(evidence_builder: EvidenceBuilder) -> None:
    start = place(evidence_builder, 2)
    evidence_builder.ledger[start:] = [
        replace(entry, counts=False) for entry in evidence_builder.ledger[start:]
    ]


def forge_an_epoch(evidence_builder: EvidenceBuilder) -> None:
    forger = Writer(9, "forger")
    evidence_builder.ledger.insert(
        place(evidence_builder, 2), Entry(forger, (EpochClaimed(9, "forger", JOB),))
    )


@pytest.mark.parametrize("forge", [break_the_chain, forge_an_epoch])
def test_a_proven_commit_in_a_message_that_does_not_count_is_damage(
    forge: Callable[[EvidenceBuilder], None],
) -> None:
    evidence_builder = job()
    forge(evidence_builder)
    findings = audited(evidence_builder)
    assert findings.verdict is Verdict.DAMAGED
    (sources,) = [c for c in findings.checks if not c.holds]
    assert "does not count, but commits version 2" in " ".join(v.text for v in sources.violations)


def test_a_job_that_ended_before_its_last_commits_is_a_lie() -> None:
    evidence_builder = cut(2)
    evidence_builder.finish()
    findings = audited(evidence_builder)
    assert "the ledger ended the job before" in as_text(findings)
    assert findings.verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("said", "ended", "expected"),
    [
        ({}, True, Verdict.HOLDS),
        ({"version": 4, "key": "v4-a1", "manifest": "m4"}, True, Verdict.VIOLATED),
        ({"version": 4, "key": "v4-a1", "manifest": "m4"}, False, Verdict.DAMAGED),
        ({"manifest": "foreign"}, True, Verdict.VIOLATED),
        ({"key": "v3-a9"}, True, Verdict.VIOLATED),
        ({"version": 2}, True, Verdict.VIOLATED),
        ({"version": 0, "key": None, "manifest": ""}, True, Verdict.HOLDS),
        ({"epoch": 7}, True, Verdict.VIOLATED),
        ({"epoch": 7}, False, Verdict.UNFINISHED),
    ],
)
def test_what_was_announced_is_the_ledgers(said: dict[str, Any], ended: bool, expected: Verdict) -> None:
    evidence_builder = job()
    if ended:
        evidence_builder.finish()
        evidence_builder.write(GroupAborted("g6", "JobFinished"))
    last = replace(announcement(evidence_builder.manifests[-1]), **said)
    findings = audited(evidence_builder, announced=(last,))
    assert findings.verdict is expected, refuted(findings.checks)
    assert set(refuted(findings.checks)) <= {"versions"}
    lies = audited(evidence_builder, announced=(last,), growing=True)
    assert lies.verdict is Verdict.HOLDS


def test_a_ledger_that_has_lost_its_claim_gets_a_verdict() -> None:
    evidence_builder = EvidenceBuilder(Writer(0, ""))
    evidence_builder.write(Evaluated(0, 0.5, 0.5, samples=1, answers=1))
    evidence_builder.metrics.append(StepMetrics(0, 0, 1.0, heldout_sampled=0.5, writer=1_000_007, epoch=1))
    assert audited(evidence_builder).verdict is Verdict.VIOLATED


def test_a_step_without_its_versions_manifest_is_damage() -> None:
    evidence_builder = cut(2)
    del evidence_builder.manifests[1:]
    findings = audited(evidence_builder)
    assert refuted(findings.checks) == {"sources": {"step 2"}, "evaluations": {"version 2", "version 3"}}
    assert findings.verdict is Verdict.DAMAGED


def test_each_verdict_has_its_exit_code_and_programs_read_it_as_one_word() -> None:
    assert {verdict.value: code for verdict, code in EXIT_CODES.items()} == {
        "holds": 0,
        "violated": 1,
        "unfinished": 3,
        "damaged": 4,
    }
    content = json.loads(as_text(audited(cut(2))))
    assert content["verdict"] == "unfinished"
    (sources,) = [check for check in content["checks"] if not check["holds"]]
    assert [violation["verdict"] for violation in sources["violations"]] == ["unfinished"]


REWARD = {"functions": ["a:b"], "timeoutSeconds": 5.0}


def under(bound: int, **algorithm: object) -> EvidenceBuilder:
    """A job whose coordinator claimed under a spec, though its pipeline has the bound 1."""
    evidence_builder = job()
    spec = {
        "pipeline": {"maxStaleness": bound},
        "data": {"promptsPerStep": 2, "groupSize": 2},
        "algorithm": {"loss": "GSPO", "scaleByStd": True, **algorithm},
        "reward": REWARD,
    }
    evidence_builder.began_under(spec)
    return evidence_builder


def user(bound: int, *, reward: dict[str, object] = REWARD, **algorithm: object) -> dict[str, object]:
    pipeline = {"mode": "BoundedAsync", "maxStaleness": bound, "inflight": "Update"}
    return {
        "pipeline": {**pipeline, "maxAttempts": 3, "maxResamples": 16, "window": 0.75},
        "data": {"promptsPerStep": 2, "groupSize": 2},
        "algorithm": {"loss": "GSPO", "scaleByStd": True, **algorithm},
        "reward": reward,
    }


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"user_spec": user(1)}, Verdict.HOLDS),
        ({"user_spec": user(2)}, Verdict.VIOLATED),
        ({"user_spec": user(2), "patched": ("pipeline.maxStaleness",)}, Verdict.HOLDS),
        ({"user_spec": user(2), "pipeline_refused": "no room"}, Verdict.HOLDS),
        # On a cluster nothing tells whether the coordinator has had the time to take a change over.
        ({"user_spec": user(2), "spec_may_be_ahead": True}, Verdict.UNFINISHED),
        ({"user_spec": user(1, clip=0.1), "spec_may_be_ahead": True}, Verdict.UNFINISHED),
        # A job without a coordinator takes no change over.
        ({"user_spec": user(1, clip=0.1) | {"suspend": True}, "spec_may_be_ahead": True}, Verdict.HOLDS),
        ({"user_spec": user(1, clip=0.1)}, Verdict.VIOLATED),
        # Nobody can have changed a field that is immutable.
        (
            {
                "user_spec": user(1, reward={**REWARD, "functions": ["exact_match"]}),
                "spec_may_be_ahead": True,
            },
            Verdict.VIOLATED,
        ),
        (
            {
                "user_spec": user(1) | {"data": {"promptsPerStep": 2, "groupSize": 2, "seed": 7}},
                "spec_may_be_ahead": True,
            },
            Verdict.VIOLATED,
        ),
        (
            {"user_spec": user(1, reward={**REWARD, "timeoutSeconds": 1.0}), "spec_may_be_ahead": True},
            Verdict.UNFINISHED,
        ),
        ({"worker_specs": (("pod", user(2)),)}, Verdict.VIOLATED),
        ({"worker_specs": (("pod", user(2)),), "patched": ("pipeline.maxStaleness",)}, Verdict.HOLDS),
    ],
)
def test_the_users_and_the_workers_specs_are_compared(changes: dict[str, object], verdict: Verdict) -> None:
    assert audited(under(1), **changes).verdict is verdict
