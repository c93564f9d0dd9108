"""Checks that no trajectory was lost, trained twice, or trained past its staleness bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evidence import ManifestFile, Violation, damage
from rljob_core.records import EpochClaimed
from rljob_core.trajectory import VersionSpan, group_of

# ------------------------------------------------------------------------------------- complete sources


def sources(run: AuditedRun) -> CheckOutcome:
    """Check that all sources decode, and that the ledger lacks neither a message nor a commit that others prove."""
    evidence = run.evidence
    found = [damage((), text) for text in evidence.unreadable]
    records = run.history.records
    found += [damage((str(n),), "is gone from the ledger") for n in records.missing]
    if evidence.job:
        found += _foreign_claims(records.claims, evidence.job)
    if not evidence.ledger and (evidence.manifests or evidence.fed):
        found.append(damage((), "the ledger is empty, but the trainer has trained"))
    found += run.history.incomplete
    examined = len(evidence.ledger) + len(evidence.manifests) + len(evidence.fed) + len(evidence.payloads)
    return examined + len(evidence.rewards), found


def _foreign_claims(claims: Sequence[tuple[int, EpochClaimed]], job: str) -> Iterator[Violation]:
    """Claims of other jobs than the one whose ledger it is, or, before it was restored as that one, was."""
    for sequence, claimed in reversed(claims):
        if claimed.job != job:
            yield damage((str(sequence),), f"of the ledger is of the job {claimed.job}, not of {job}")
        job = claimed.former or job


# ------------------------------------------------------------------------------------- lost


def one_ending(run: AuditedRun) -> CheckOutcome:
    """Check that every group ended at most once, and that each trained group was trained as a whole."""
    found = []
    history = run.history
    planned = {i for group in history.groups.values() for i in group.members}
    trained: dict[str, set[str]] = {}
    for consumed in run.consumed:
        trained.setdefault(group_of(consumed.trajectory), set()).add(consumed.trajectory)
    for name, group in history.groups.items():
        if group.consumed and group.aborted:
            found.append(Violation((name,), f"was trained in step {group.consumed[0]} and aborted"))
        if len(group.aborted) > 1:
            found.append(Violation((name,), "was aborted twice"))
        if any(not abort.reason for abort in group.aborted):
            found.append(Violation((name,), "was aborted without a reason"))
        if group.consumed and (left := [i for i in group.members if i not in trained.get(name, ())]):
            found.append(
                Violation(tuple(left), f"were left out when their group was trained in {group.consumed[0]}")
            )
        if history.finished is not None and history.finished.outcome == "Succeeded" and not group.ended:
            found.append(Violation((name,), "is still open, though the job has succeeded"))
    found += [
        Violation((c.trajectory,), f"was trained in step {c.step}, but never planned")
        for c in run.consumed
        if c.trajectory not in planned
    ]
    return len(planned), found


def causes(run: AuditedRun) -> CheckOutcome:
    """Report what the history found given up, or ended, for no cause that the ledger shows."""
    return len(run.history.groups), run.history.causes.groundless


def prompts(run: AuditedRun) -> CheckOutcome:
    """Check that prompts were planned in the data's order, and that what is left names the prompts of its groups."""
    found = list(run.history.disordered)
    groups = run.history.groups
    stated: list[tuple[str, int | None, str]] = [
        (item.trajectory, item.prompt, "the payload that was trained") for _, item in run.fed_items
    ]
    stated += [(p.trajectory, p.prompt, "its payload") for p in run.evidence.payloads]
    for trajectory, prompt, source in stated:
        group = groups.get(group_of(trajectory))
        if prompt is not None and group is not None and prompt != group.record.prompt:
            text = f"is of prompt {group.record.prompt}, but {source} answers prompt {prompt}"
            found.append(Violation((trajectory,), text))
    return len(groups), found


# ------------------------------------------------------------------------------------- trained twice


def once_by_ledger(run: AuditedRun) -> CheckOutcome:
    """Check that no trajectory is in two commits of the ledger, revoked commits included."""
    revoked = [(c.step, c.trajectory) for commit in run.history.revoked for c in commit.consumed]
    return _once(((c.step, c.trajectory) for c in run.consumed), revoked)


def once_by_trainer(run: AuditedRun) -> CheckOutcome:
    """Check that the trainer fed no trajectory to two steps, and fed none to the same step again without a restart.

    Only the log of attempts and epochs whose commits count is checked. The ledger must show each restart of a step.
    """
    examined, found = _once(((step, item.trajectory) for step, item in run.fed_items), run.revoked)
    trained = {c.trajectory: c.step for c in run.consumed}
    found += [
        Violation(
            (item.trajectory,),
            f"was trained in step {trained[item.trajectory]}, and fed to the step that is open",
        )
        for item in run.open_step
        if item.trajectory in trained
    ]
    fences = {c.record.version: (c.record.attempt, c.record.epoch) for c in run.history.commits}
    restored = {c.record.version for c in run.history.commits if c.restored}
    for version, starts in run.starts.items():
        if version in restored:  # the ledger may have lost how often the step was started
            continue
        # Only the coordinator starts a step: it starts an attempt at this version, or commits the step before.
        attempt_starts = run.history.starts.get((*fences[version], version - 1), 0)
        follows = fences.get(version - 1) == fences[version]
        for start in starts[max(attempt_starts + follows, 1) :]:
            ids = tuple(item.trajectory for item in start[0].items)
            found.append(
                Violation(ids, f"were fed to step {version - 1} again, though it was not started over")
            )
    return examined, found


def once_by_manifests(run: AuditedRun) -> CheckOutcome:
    """Check that no trajectory is in the commit records of two manifests, those of revoked versions included."""
    revoked = {commit.record.manifest for commit in run.history.revoked}
    left = [manifest for manifest in run.evidence.manifests if manifest.digest in revoked]
    return _once(_embedded(run.chain), _embedded(left))


def _embedded(manifests: Iterable[ManifestFile]) -> Iterator[tuple[int, str]]:
    for manifest in manifests:
        for batch in manifest.proposal.micro_batches if manifest.proposal is not None else ():
            yield from ((manifest.version - 1, trajectory) for trajectory in batch)


def _once(trained: Iterable[tuple[int, str]], revoked: Iterable[tuple[int, str]]) -> CheckOutcome:
    steps: dict[str, list[int]] = {}
    for step, trajectory in trained:
        steps.setdefault(trajectory, []).append(step)
    found = [
        Violation((trajectory,), f"was trained in steps {' and '.join(map(str, where))}")
        for trajectory, where in steps.items()
        if len(where) > 1
    ]
    found += [
        Violation(
            (trajectory,),
            f"was trained in step {steps[trajectory][0]}, and in step {step}, which was revoked",
        )
        for step, trajectory in revoked
        if trajectory in steps
    ]
    return sum(map(len, steps.values())), found


# ------------------------------------------------------------------------------------- too stale


def bound_by_ledger(run: AuditedRun) -> CheckOutcome:
    """Check the staleness of all trained trajectories by the payload spans in the ledger.

    For a restored commit, the ledger may only have an earlier attempt than the trained one: that one is skipped.
    """
    fed = {(step, item.trajectory): item.attempt for step, item in run.fed_items}
    seen = [
        (c.step, c.trajectory, c.generated.span)
        for commit in run.history.commits
        for c in commit.consumed
        if c.generated is not None
        and not (commit.restored and fed.get((c.step, c.trajectory)) != c.generated.attempt)
    ]
    return _bound(run, seen)


def bound_by_trainer(run: AuditedRun) -> CheckOutcome:
    """Check the staleness of all trained trajectories by the payload spans that the trainer read from the headers."""
    examined, found = _bound(run, [(step, item.trajectory, item.span) for step, item in run.fed_items])
    step = run.history.version
    bound = max(run.bounds, default=None)
    found += [
        Violation((item.trajectory,), f"was fed to step {step}, which is open, {wrong}")
        for item in run.open_step
        if (wrong := _wrong_versions(item.span, step, bound))
    ]
    return examined + len(run.open_step), found


def _bound(run: AuditedRun, seen: list[tuple[int, str, VersionSpan]]) -> CheckOutcome:
    found = []
    for step, trajectory, span in seen:
        stamp = run.history.stamps.get(step)
        if stamp is None:
            found.append(
                Violation((trajectory,), f"was trained in step {step}, whose buffer was never opened")
            )
        elif wrong := _wrong_versions(span, step, stamp):
            found.append(Violation((trajectory,), f"was trained in step {step} {wrong}"))
    return len(seen), found


def _wrong_versions(span: VersionSpan, step: int, bound: int | None) -> str:
    """Say why a step cannot train on tokens of these versions; "" if it can. `bound`: None if it is unknown."""
    if not 0 <= span.min <= span.max <= step:
        return f"with tokens of versions {span.min} to {span.max}, which do not exist before it"
    if bound is not None and step - span.min > bound:
        return f"with staleness {step - span.min}, past {bound}"
    return ""


def within_stamps(run: AuditedRun) -> CheckOutcome:
    """Report the reservations and moves that the history found outside their buffer's bound."""
    return len(run.history.groups) + run.history.moves, run.history.misplaced


def changes(run: AuditedRun) -> CheckOutcome:
    """Report the buffers and changes of the pipeline settings that the history found inconsistent."""
    history = run.history
    return len(history.buffers) + len(history.pipelines.settings), history.pipelines.broken


def full_steps(run: AuditedRun) -> CheckOutcome:
    """Check that each step trained as many groups as its buffer has entries, and only groups with an entry there.

    For a restored commit only the number is checked: the ledger may have lost how the groups got their entries.
    """
    found = []
    for commit in run.history.commits:
        step = commit.record.version - 1
        buffer = run.history.buffers.get(step)
        groups = dict.fromkeys(group_of(c.trajectory) for c in commit.consumed)
        if buffer is not None and len(groups) != buffer.capacity:
            text = f"step {step} trained {len(groups)} groups, but its buffer has {buffer.capacity} entries"
            found.append(Violation((f"step {step}",), text))
        for consumed in () if commit.restored else commit.consumed:
            if consumed.planned_step is not None and consumed.planned_step != step:
                text = f"was trained in step {step}, but its entry is in step {consumed.planned_step}"
                found.append(Violation((consumed.trajectory,), text))
    return len(run.history.commits), found
