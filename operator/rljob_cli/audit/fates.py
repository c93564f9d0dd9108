"""Checks that no trajectory was lost, trained twice, or trained past its staleness bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rljob_cli.audit.case import Case, Refuted
from rljob_cli.audit.evidence import ManifestFile, Violation
from rljob_core.trajectory import group_of

# ------------------------------------------------------------------------------------- what is read at all


def sources(case: Case) -> Refuted:
    """Nothing is missing from the middle, and everything decodes."""
    evidence = case.evidence
    found = [Violation((), text) for text in evidence.unreadable]
    charge = case.history.charge
    found += [Violation((str(n),), "is gone from the ledger") for n in charge.missing]
    found += [
        Violation((str(sequence),), f"of the ledger is of the job {job}, not of {evidence.job}")
        for sequence, job in charge.jobs
        if evidence.job and job != evidence.job
    ]
    if not evidence.ledger and (evidence.manifests or evidence.fed):
        found.append(Violation((), "the ledger is empty, but the trainer has trained"))
    examined = len(evidence.ledger) + len(evidence.manifests) + len(evidence.fed) + len(evidence.payloads)
    return examined + len(evidence.rewards), found


# ------------------------------------------------------------------------------------- lost


def one_ending(case: Case) -> Refuted:
    """Group by group, and trajectory by trajectory within one that was trained."""
    found = []
    history = case.history
    planned = {i for group in history.groups.values() for i in group.members}
    trained: dict[str, set[str]] = {}
    for consumed in case.consumed:
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
        for c in case.consumed
        if c.trajectory not in planned
    ]
    return len(planned), found


# ------------------------------------------------------------------------------------- trained twice


def once_by_ledger(case: Case) -> Refuted:
    """Over all commits; what a revoked one has consumed is never given out again."""
    revoked = [(c.step, c.trajectory) for commit in case.history.revoked for c in commit.consumed]
    return _once(((c.step, c.trajectory) for c in case.consumed), revoked)


def once_by_trainer(case: Case) -> Refuted:
    """Over all that was fed under the fences whose commits count; a step starts over only at the word of the ledger."""
    examined, found = _once(((step, item.trajectory) for step, item in case.fed_items), case.revoked)
    fences = {c.record.version: (c.record.attempt, c.record.epoch) for c in case.history.commits}
    restored = {c.record.version for c in case.history.commits if c.restored}
    for version, starts in case.starts.items():
        if version in restored:  # how often it started, the ledger has lost
            continue
        # A step starts at the coordinator's word only: a start of the attempt at this version, or the commit before.
        words = case.history.starts.get((*fences[version], version - 1), 0)
        follows = fences.get(version - 1) == fences[version]
        for start in starts[max(words + follows, 1) :]:
            ids = tuple(item.trajectory for item in start[0].items)
            found.append(
                Violation(ids, f"were fed to step {version - 1} again, though it was not started over")
            )
    return examined, found


def once_by_manifests(case: Case) -> Refuted:
    """Over the commit records that the chain of manifests embeds, and those that it left when it was revoked."""
    revoked = {commit.record.manifest for commit in case.history.revoked}
    left = [manifest for manifest in case.evidence.manifests if manifest.digest in revoked]
    return _once(_embedded(case.chain), _embedded(left))


def _embedded(manifests: Iterable[ManifestFile]) -> Iterator[tuple[int, str]]:
    for manifest in manifests:
        for batch in manifest.proposal.micro_batches if manifest.proposal is not None else ():
            yield from ((manifest.version - 1, trajectory) for trajectory in batch)


def _once(trained: Iterable[tuple[int, str]], revoked: Iterable[tuple[int, str]]) -> Refuted:
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


def bound_by_ledger(case: Case) -> Refuted:
    """By the payload's span as the coordinator wrote it down.

    Of a restored commit, the ledger may know an attempt before the one that was trained: it says nothing of that.
    """
    fed = {(step, item.trajectory): item.attempt for step, item in case.fed_items}
    seen = [
        (c.step, c.trajectory, c.generated.span.min)
        for commit in case.history.commits
        for c in commit.consumed
        if c.generated is not None
        and not (commit.restored and fed.get((c.step, c.trajectory)) != c.generated.attempt)
    ]
    return _bound(case, seen)


def bound_by_trainer(case: Case) -> Refuted:
    """By the payload's span as the trainer read it from its header."""
    return _bound(case, [(step, item.trajectory, item.span.min) for step, item in case.fed_items])


def _bound(case: Case, seen: list[tuple[int, str, int]]) -> Refuted:
    found = []
    for step, trajectory, version in seen:
        stamp = case.history.stamps.get(step)
        if stamp is None:
            found.append(
                Violation((trajectory,), f"was trained in step {step}, whose buffer was never opened")
            )
        elif step - version > stamp:
            text = f"was trained in step {step} with staleness {step - version}, past {stamp}"
            found.append(Violation((trajectory,), text))
    return len(seen), found


def within_stamps(case: Case) -> Refuted:
    """What the history found misplaced."""
    return len(case.history.groups) + case.history.moves, case.history.misplaced


def changes(case: Case) -> Refuted:
    """What the history of the pipeline found broken, over its words and the buffers between them."""
    history = case.history
    return len(history.buffers) + len(history.pipelines.said), history.pipelines.broken


def full_steps(case: Case) -> Refuted:
    """As many groups as the buffer has entries, each of them with its entry there.

    How they came into a restored step, the ledger has lost.
    """
    found = []
    for commit in case.history.commits:
        step = commit.record.version - 1
        buffer = case.history.buffers.get(step)
        groups = dict.fromkeys(group_of(c.trajectory) for c in commit.consumed)
        if buffer is not None and len(groups) != buffer.capacity:
            text = f"step {step} trained {len(groups)} groups, but its buffer has {buffer.capacity} entries"
            found.append(Violation((f"step {step}",), text))
        for consumed in () if commit.restored else commit.consumed:
            if consumed.planned_step is not None and consumed.planned_step != step:
                text = f"was trained in step {step}, but its entry is in step {consumed.planned_step}"
                found.append(Violation((consumed.trajectory,), text))
    return len(case.history.commits), found
