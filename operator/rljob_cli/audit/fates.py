"""PURE. Claims about the fate of trajectories: none lost, none trained twice, none past its bound."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_cli.audit.case import Case, Refuted
from rljob_cli.audit.evidence import Violation
from rljob_core.trajectory import group_of

# ------------------------------------------------------------------------------------- what is read at all


def sources(case: Case) -> Refuted:
    """Nothing is missing from the middle, and everything decodes."""
    evidence = case.evidence
    found = [Violation((), text) for text in evidence.unreadable]
    found += [Violation((str(n),), "is gone from the ledger") for n in case.history.missing]
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
        ended = bool(group.consumed or group.aborted)
        if history.finished is not None and history.finished.outcome == "Succeeded" and not ended:
            found.append(Violation((name,), "is still open, though the job has succeeded"))
    found += [
        Violation((c.trajectory,), f"was trained in step {c.step}, but never planned")
        for c in case.consumed
        if c.trajectory not in planned
    ]
    return len(planned), found


# ------------------------------------------------------------------------------------- trained twice


def once_by_ledger(case: Case) -> Refuted:
    """Over all commits."""
    return _once((c.step, c.trajectory) for c in case.consumed)


def once_by_trainer(case: Case) -> Refuted:
    """Over all that was fed under the fences whose commits count; a step starts over only at the word of the ledger."""
    examined, found = _once((step, item.trajectory) for step, item in case.fed_items)
    fences = {c.record.version: (c.record.attempt, c.record.epoch) for c in case.history.commits}
    for version, starts in case.starts.items():
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
    """Over the commit records that the chain of manifests embeds."""
    return _once(
        (manifest.version - 1, trajectory)
        for manifest in case.chain
        if manifest.proposal is not None
        for batch in manifest.proposal.micro_batches
        for trajectory in batch
    )


def _once(trained: Iterable[tuple[int, str]]) -> Refuted:
    steps: dict[str, list[int]] = {}
    for step, trajectory in trained:
        steps.setdefault(trajectory, []).append(step)
    found = [
        Violation((trajectory,), f"was trained in steps {' and '.join(map(str, where))}")
        for trajectory, where in steps.items()
        if len(where) > 1
    ]
    return sum(map(len, steps.values())), found


# ------------------------------------------------------------------------------------- too stale


def bound_by_ledger(case: Case) -> Refuted:
    """By the payload's span as the coordinator wrote it down."""
    seen = [(c.step, c.trajectory, c.generated.span.min) for c in case.consumed if c.generated is not None]
    return _bound(case, seen)


def bound_by_trainer(case: Case) -> Refuted:
    """By the payload's span as the trainer read it from its header."""
    return _bound(case, [(step, item.trajectory, item.span.min) for step, item in case.fed_items])


def _bound(case: Case, seen: list[tuple[int, str, int]]) -> Refuted:
    found = []
    for step, trajectory, version in seen:
        buffer = case.history.buffers.get(step)
        if buffer is None:
            found.append(
                Violation((trajectory,), f"was trained in step {step}, whose buffer was never opened")
            )
        elif step - version > buffer.max_staleness:
            text = f"was trained in step {step} with staleness {step - version}, past {buffer.max_staleness}"
            found.append(Violation((trajectory,), text))
    return len(seen), found


def within_stamps(case: Case) -> Refuted:
    """What the history found misplaced."""
    return len(case.history.groups) + case.history.moves, case.history.misplaced


def full_steps(case: Case) -> Refuted:
    """As many groups as the buffer has entries, each of them with its entry there."""
    found = []
    for commit in case.history.commits:
        step = commit.record.version - 1
        buffer = case.history.buffers.get(step)
        groups = dict.fromkeys(group_of(c.trajectory) for c in commit.consumed)
        if buffer is not None and len(groups) != buffer.capacity:
            text = f"step {step} trained {len(groups)} groups, but its buffer has {buffer.capacity} entries"
            found.append(Violation((f"step {step}",), text))
        for consumed in commit.consumed:
            if consumed.planned_step is not None and consumed.planned_step != step:
                text = f"was trained in step {step}, but its entry is in step {consumed.planned_step}"
                found.append(Violation((consumed.trajectory,), text))
    return len(case.history.commits), found
