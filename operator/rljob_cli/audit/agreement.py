"""PURE. Claims that sources which do not trust one another agree, and that versions and attempts are in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from rljob_cli.audit.case import Case, Refuted
from rljob_cli.audit.evidence import PayloadLeft, Violation
from rljob_core.records import Generated
from rljob_core.trajectory import trajectory_id

# ------------------------------------------------------------------------------------- the same everywhere


def digests(case: Case) -> Refuted:
    """At the commit, the ledger holds both digests of everything that it consumes."""
    found = []
    examined = 0
    for consumed in case.consumed:
        examined += 1
        generated, rewarded = consumed.generated, consumed.rewarded
        if generated is None or not generated.digest:
            found.append(Violation((consumed.trajectory,), "was trained without a payload digest"))
        if rewarded is None or not rewarded.digest:
            found.append(Violation((consumed.trajectory,), "was trained without a reward digest"))
    return examined, found


def same_payloads(case: Case) -> Refuted:
    """The ledger's attempt, digest and span are those that the trainer read by itself, and those of payloads left."""
    fed = {(step, item.trajectory): item for step, item in case.fed_items}
    found = []
    examined = 0
    for consumed in case.consumed:
        record, item = consumed.generated, fed.get((consumed.step, consumed.trajectory))
        if record is None or item is None:
            continue
        examined += 1
        ledger = (record.attempt, record.digest, record.span)
        if ledger != (item.attempt, item.digest, item.span):
            read = _payload(item.attempt, item.digest, item.span)
            text = f"the ledger has {_payload(*ledger)}, the trainer read {read}"
            found.append(Violation((consumed.trajectory,), text))
    stored: dict[tuple[str, int], list[PayloadLeft]] = {}
    for payload in case.evidence.payloads:
        stored.setdefault((payload.trajectory, payload.attempt), []).append(payload)
        if not payload.intact:
            found.append(Violation((payload.trajectory,), "its stored bytes do not match their digest"))
    for record in _generated(case):
        if left := stored.get((record.trajectory, record.attempt)):
            examined += 1
            if (record.digest, record.span) not in {(p.digest, p.span) for p in left}:
                text = f"the ledger has {_payload(record.attempt, record.digest, record.span)}, the stream another one"
                found.append(Violation((record.trajectory,), text))
    return examined, found


def _payload(attempt: int, digest: str, span: object) -> str:
    return f"attempt {attempt}, digest {digest[:12] or 'none'}, {span}"


def _generated(case: Case) -> Iterator[Generated]:
    members = (m for group in case.history.groups.values() for m in group.members.values())
    return (member.generated for member in members if member.generated is not None)


def same_rewards(case: Case) -> Refuted:
    """The ledger's digest and score are among the results that the reward stream still has."""
    results: dict[tuple[str, int], set[tuple[str, str, float]]] = {}
    for result in case.evidence.rewards:
        key = (result.trajectory, result.attempt)
        results.setdefault(key, set()).add((result.payload_digest, result.digest, result.reward))
    found = []
    examined = 0
    for group in case.history.groups.values():
        for trajectory, member in group.members.items():
            if member.generated is None or member.rewarded is None:
                continue
            if given := results.get((trajectory, member.rewarded.attempt)):
                examined += 1
                if (member.generated.digest, member.rewarded.digest, member.rewarded.reward) not in given:
                    text = f"the ledger's reward {member.rewarded.reward:g} is not what the reward stream has"
                    found.append(Violation((trajectory,), text))
    return examined, found


def same_batches(case: Case) -> Refuted:
    """Committed = assigned = fed, micro-batch by micro-batch, in order."""
    found = []
    sizes = {name: len(group.members) for name, group in case.history.groups.items()}
    for commit in case.history.commits:
        record = commit.record
        assigned = tuple(
            tuple(trajectory_id(name, n) for name in batch.groups for n in range(sizes.get(name, 0)))
            for batch in commit.assigned
        )
        fed = tuple(tuple(item.trajectory for item in batch.items) for batch in case.fed(record.version))
        for what, other in (("assigned to it", assigned), ("fed, by the trainer's own log,", fed)):
            if other != record.micro_batches:
                ids = _difference(record.micro_batches, other) or (f"version {record.version}",)
                text = f"what version {record.version} committed is not what was {what} in this order"
                found.append(Violation(ids, text))
        numbers = [batch.micro_batch for batch in commit.assigned]
        if numbers != list(range(len(numbers))) or any(b.last for b in commit.assigned[:-1]):
            found.append(
                Violation((f"version {record.version}",), "its micro-batches were assigned out of order")
            )
    return len(case.history.commits), found


def _difference(one: tuple[tuple[str, ...], ...], other: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    ours, theirs = ({t for batch in batches for t in batch} for batches in (one, other))
    return tuple(sorted(ours ^ theirs))


# ------------------------------------------------------------------------------------- versions


def versions(case: Case) -> Refuted:
    """1, 2, 3, … without a gap, each parent the manifest before."""
    commits = [commit.record for commit in case.history.commits]
    found = []
    for expected, record in enumerate(commits, start=1):
        if record.version != expected:
            text = f"commit {expected} of the ledger makes version {record.version}"
            found.append(Violation((f"version {record.version}",), text))
            break
    if commits and commits[0].parent:
        found.append(Violation(("version 1",), "does not start from the initial model"))
    found += [
        Violation(
            (f"version {record.version}",), f"does not start from the manifest of version {before.version}"
        )
        for before, record in pairwise(commits)
        if record.parent != before.manifest
    ]
    return len(commits), found


def manifests(case: Case) -> Refuted:
    """Each manifest's own digest, the ledger's digest of it, and the commit record that it embeds."""
    by_key = {manifest.key: manifest for manifest in case.evidence.manifests}
    found = []
    for commit in case.history.commits:
        record = commit.record
        name = (f"version {record.version}",)
        manifest = by_key.get(record.key)
        if manifest is None:
            found.append(Violation(name, f"has no manifest {record.key} in the weight store"))
        elif not manifest.intact:
            found.append(Violation(name, f"its manifest {record.key} does not match its own digest"))
        elif manifest.digest != record.manifest or manifest.version != record.version:
            found.append(Violation(name, f"the ledger names another manifest than {record.key}"))
        elif manifest.proposal is None or replace(record, manifest="") != manifest.proposal:
            found.append(Violation(name, "its manifest holds another commit record than the ledger"))
    return len(case.history.commits), found


def attempts(case: Case) -> Refuted:
    """What the history found out of order."""
    return case.history.records, case.history.out_of_order
