"""The audit of a run: proves that no trajectory was lost, trained twice or past its bound, or names those that were.

Each check tests one claim against one or two sources, so that a wrong source contradicts another one. `read` reads the
evidence and `table` prints the findings. To stay independent of the coordinator, the checks share only the types of its
records, the rule which of its messages count, and, to verify snapshots, the function that applies records to a state.
"""

from __future__ import annotations

from collections.abc import Callable

from rljob_cli.audit import agreement, trajectories
from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.causes import UNSENDABLE
from rljob_cli.audit.evidence import AuditCheck, Evidence, Findings
from rljob_cli.audit.metrics import evaluations
from rljob_cli.audit.specs import specs
from rljob_cli.audit.summary import summary

__all__ = ["audit"]


def audit(evidence: Evidence) -> Findings:
    """Run all checks on the evidence and return what they found."""
    run = AuditedRun.of(evidence)
    checks = []
    unchecked = []
    for check, claim in _CLAIMS.items():
        if evidence.streams_only and check in _OF_STORAGE:
            unchecked.append(claim)
            continue
        examined, violations = check(run)
        checks.append(AuditCheck(check.__name__.replace("_", "-"), claim, examined, tuple(violations)))
    return Findings(tuple(checks), _counts(run), tuple(unchecked))


_CLAIMS: dict[Callable[[AuditedRun], CheckOutcome], str] = {
    trajectories.sources: "every source is whole and readable",
    trajectories.one_ending: "every planned trajectory is consumed, aborted with a reason, or still open",
    trajectories.causes: "every group was given up, and the job succeeded, for a cause that the ledger shows",
    trajectories.prompts: "prompts were planned in the data's order, without a gap, each as one group",
    trajectories.once_by_ledger: "none was trained twice, by the ledger",
    trajectories.once_by_trainer: "none was trained twice, by the trainer's own log",
    trajectories.once_by_manifests: "none was trained twice, by the weights' manifests",
    trajectories.bound_by_ledger: "none was trained past its buffer's bound, by the ledger",
    trajectories.bound_by_trainer: (
        "none was trained past its buffer's bound, by the payload headers that the trainer read"
    ),
    trajectories.within_stamps: "every reservation and move satisfies the stamp of its buffer",
    trajectories.changes: (
        "every buffer opened under the bound and mode that were in force, and no sooner than that allows"
    ),
    specs: "the ledger, the user and the workers have the same spec, sampling included, and the ledger followed it",
    trajectories.full_steps: "every step trained its own buffer, and all of it",
    agreement.digests: "everything trained has a payload digest of its own and a reward digest",
    agreement.same_payloads: "ledger, trainer and what payloads are left name the same bytes and versions",
    agreement.same_rewards: "ledger and what rewards are left name the same scores",
    agreement.trained_rewards: "the trainer was sent the ledger's scores, and the advantages that follow from them",
    evaluations: "every evaluation was due, and the published metrics have the ledger's figures and no others",
    summary: "summary.json has the end and the figures that the ledger has",
    agreement.same_batches: "what was committed is what was assigned and what the trainer fed, in order",
    agreement.versions: (
        "versions follow one another, each once, each from the one before, and no other was announced"
    ),
    agreement.manifests: "every version's manifest is intact and holds the ledger's commit record",
    agreement.attempts: "attempts only go up, and results are of the attempt that holds them",
    agreement.unaltered: "no message of the ledger was altered since it was written, nor since a manifest named it",
    agreement.snapshots: "every snapshot of the ledger is what the records before it lead to",
}
_OF_STORAGE = (
    trajectories.once_by_trainer,
    trajectories.once_by_manifests,
    trajectories.bound_by_trainer,
    agreement.trained_rewards,
    agreement.same_batches,
    agreement.manifests,
)
"""Checks of what is in no stream: the weights' manifests and the trainer's log."""


def _counts(run: AuditedRun) -> dict[str, object]:
    groups = run.history.groups.values()
    evidence = run.evidence
    return {
        "planned": sum(len(group.members) for group in groups),
        "consumed": sum(1 for _ in run.consumed),
        "aborted": dict(sorted(run.history.aborted.items())),
        "unsent_prompts": sorted(
            group.record.prompt
            for group in groups
            if any(UNSENDABLE in abort.causes.values() for abort in group.aborted[:1])
        ),
        "unscored_answers": [
            {"version": r.version, "failed": score.failed, "answers": score.answers, "error": score.error}
            | ({"set": name} if name else {})
            for _, r in sorted(run.history.evaluated.items())
            for name, score in zip(("", *r.sets), r.scores, strict=True)
            if score.failed
        ],
        "resumed": run.history.resumed,
        "resumed_tokens": run.history.resumed_tokens,
        "open": sum(len(group.members) for group in groups if not group.ended),
        "versions": len(run.history.commits),
        "versions_restored": sum(commit.restored for commit in run.history.commits),
        "versions_revoked": len(run.history.revoked),
        "trainer_attempts": max((a.attempt for a in run.history.attempts), default=0),
        "pipelines": list(run.history.pipelines.summary()),
        "records": run.history.records.valid,
        "records_of_fenced_writers": run.history.records.fenced,
        "messages_out_of_chain": run.history.records.astray,
        "snapshots": sum(m.counts and m.snapshot is not None for m in evidence.ledger),
        "payloads_left": len(evidence.payloads),
        "rewards_left": len(evidence.rewards),
        "manifests": len(evidence.manifests),
        "micro_batches_fed": len(evidence.fed),
        "finished": run.history.finished.outcome if run.history.finished is not None else "",
    }
