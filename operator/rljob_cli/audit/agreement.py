"""Checks that independent sources agree, that versions and attempts are in order, and that the ledger is unaltered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import isclose

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evidence import Evidence, PayloadLeft, Violation, damage
from rljob_cli.audit.history import History, ValidRecords
from rljob_core.advantage import group_advantages
from rljob_core.errors import ProtocolViolation
from rljob_core.job_state import JobState, snapshot
from rljob_core.messages import VersionAnnounced
from rljob_core.records import EPOCH_STRIDE, Generated, MicroBatchAssigned, StepCommitted
from rljob_core.trajectory import group_of, trajectory_id

# ------------------------------------------------------------------------------------- agreement of the sources


def digests(run: AuditedRun) -> CheckOutcome:
    """Check that at each commit, the ledger holds the payload digest and reward digest of everything consumed.

    The ledger may have lost the records before a restored commit; the trainer's own log must then have the payload
    digests. Where that log cannot be read, nothing is said of restored steps.
    """
    found = []
    examined = 0
    restored = {c.trajectory for commit in run.history.commits if commit.restored for c in commit.consumed}
    logged = {(step, item.trajectory) for step, item in run.fed_items if item.digest}
    for consumed in run.consumed:
        if consumed.trajectory in restored and run.evidence.streams_only:
            continue
        examined += 1
        if consumed.trajectory in restored:
            if (consumed.step, consumed.trajectory) not in logged:
                text = "was trained in a restored step, and the trainer's own log has no payload digest"
                found.append(damage((consumed.trajectory,), text))
            continue
        generated, rewarded = consumed.generated, consumed.rewarded
        if generated is None or not generated.digest:
            found.append(Violation((consumed.trajectory,), "was trained without a payload digest"))
        if rewarded is None or not rewarded.digest:
            found.append(Violation((consumed.trajectory,), "was trained without a reward digest"))
    return examined, [*found, *_shared(run)]


def _shared(run: AuditedRun) -> Iterator[Violation]:
    """Report payloads under several ids: a digest covers the id, so no two trajectories have the same."""
    named: dict[str, set[str]] = {}
    stated = [(record.digest, record.trajectory) for record in _generated(run)]
    stated += [(c.generated.digest, c.trajectory) for c in run.consumed if c.generated is not None]
    stated += [(item.digest, item.trajectory) for _, item in run.fed_items]
    stated += [(payload.digest, payload.trajectory) for payload in run.evidence.payloads]
    for digest, trajectory in stated:
        if digest:
            named.setdefault(digest, set()).add(trajectory)
    for digest, trajectories in named.items():
        if len(trajectories) > 1:
            text = f"have one payload, of the digest {digest[:12]}, which belongs to one of them alone"
            yield Violation(tuple(sorted(trajectories)), text)


def same_payloads(run: AuditedRun) -> CheckOutcome:
    """Check that the ledger, the trainer's log and the remaining payloads agree on attempt, digest and version span."""
    fed = {(step, item.trajectory): item for step, item in run.fed_items}
    found = []
    examined = 0
    for commit, consumed in ((one, c) for one in run.history.commits for c in one.consumed):
        record, item = consumed.generated, fed.get((consumed.step, consumed.trajectory))
        if item is None:
            continue
        if commit.restored and item.attempt != consumed.attempt:
            if item.attempt < consumed.attempt:
                text = f"the trainer read attempt {item.attempt}, but attempt {consumed.attempt} held it"
                found.append(Violation((consumed.trajectory,), text))
            continue  # the ledger has lost the records of this later attempt
        if record is None:
            continue
        examined += 1
        ledger = (record.attempt, record.digest, record.span)
        if ledger != (item.attempt, item.digest, item.span):
            read = _payload(item.attempt, item.digest, item.span)
            text = f"the ledger has {_payload(*ledger)}, the trainer read {read}"
            found.append(Violation((consumed.trajectory,), text))
    # Compare only payloads at the place that the ledger names: after the end of the ledger was lost, another engine may
    # have generated the same attempt again, and new messages reuse the sequences of lost ones.
    stored: dict[tuple[str, int, int, int], PayloadLeft] = {}
    for payload in run.evidence.payloads:
        stored[payload.trajectory, payload.attempt, payload.sequence, payload.index] = payload
        if not payload.intact:
            found.append(damage((payload.trajectory,), "its stored bytes do not match their digest"))
    for record in _generated(run):
        if left := stored.get((record.trajectory, record.attempt, record.sequence, record.index)):
            examined += 1
            if (record.digest, record.span) != (left.digest, left.span):
                text = f"the ledger has {_payload(record.attempt, record.digest, record.span)}, the stream another one"
                found.append(Violation((record.trajectory,), text))
    return examined, found


def _payload(attempt: int, digest: str, span: object) -> str:
    return f"attempt {attempt}, digest {digest[:12] or 'none'}, {span}"


def _generated(run: AuditedRun) -> Iterator[Generated]:
    members = (m for group in run.history.groups.values() for m in group.members.values())
    return (member.generated for member in members if member.generated is not None)


def same_rewards(run: AuditedRun) -> CheckOutcome:
    """Check that the ledger's reward is among those that the reward stream still has for the same payload."""
    results: dict[tuple[str, int, str], set[tuple[str, float]]] = {}
    for result in run.evidence.rewards:
        key = (result.trajectory, result.attempt, result.payload_digest)
        results.setdefault(key, set()).add((result.digest, result.reward))
    owners = {record.digest: record.trajectory for record in _generated(run)}
    scored = [(result.trajectory, owners.get(result.payload_digest)) for result in run.evidence.rewards]
    found = [
        Violation((name,), f"has a score for the payload of {owner}")
        for name, owner in scored
        if owner not in {None, name}
    ]
    examined = 0
    for group in run.history.groups.values():
        for trajectory, member in group.members.items():
            if member.generated is None or member.rewarded is None:
                continue
            if given := results.get((trajectory, member.rewarded.attempt, member.generated.digest)):
                examined += 1
                if (member.rewarded.digest, member.rewarded.reward) not in given:
                    text = f"the ledger's reward {member.rewarded.reward:g} is not what the reward stream has"
                    found.append(Violation((trajectory,), text))
    return examined, found


def same_batches(run: AuditedRun) -> CheckOutcome:
    """Check that each commit has the micro-batches that were assigned and those that the trainer logged, in order.

    For a restored commit only the trainer's log is compared: the ledger may have lost the assignments. The log must
    have what revoked commits consumed, since none of it may be trained again.
    """
    found = []
    sizes = {name: len(group.members) for name, group in run.history.groups.items()}
    for commit in run.history.commits:
        record = commit.record
        assigned = tuple(
            tuple(trajectory_id(name, n) for name in batch.groups for n in range(sizes.get(name, 0)))
            for batch in commit.assigned
        )
        fed = tuple(tuple(item.trajectory for item in batch.items) for batch in run.fed(record.version))
        sources = [("assigned to it", assigned), ("fed, by the trainer's own log,", fed)]
        for what, other in sources[commit.restored :]:
            if other == record.micro_batches:
                continue
            ids = _difference(record.micro_batches, other) or (f"version {record.version}",)
            if other is fed and not fed:
                text = f"were committed with version {record.version}, but the trainer's own log has nothing of it"
                found.append(damage(ids, text))
            else:
                text = f"what version {record.version} committed is not what was {what} in this order"
                found.append(Violation(ids, text))
        logged = [batch.micro_batch for batch in run.fed(record.version)]
        if fed == record.micro_batches and logged != list(range(len(logged))):
            text = "its micro-batches are out of order in the trainer's own log"
            found.append(Violation((f"version {record.version}",), text))
        numbers = [batch.micro_batch for batch in commit.assigned]
        if numbers != list(range(len(numbers))) or any(b.last for b in commit.assigned[:-1]):
            found.append(
                Violation((f"version {record.version}",), "its micro-batches were assigned out of order")
            )
    known = set(run.revoked)
    for commit in run.history.revoked:
        if gone := tuple(c.trajectory for c in commit.consumed if (c.step, c.trajectory) not in known):
            text = f"were consumed by version {commit.record.version}, which was revoked, but the trainer's own log "
            found.append(damage(gone, f"{text}has nothing of them"))
    return len(run.history.commits), found


def _difference(one: tuple[tuple[str, ...], ...], other: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    ours, theirs = ({t for batch in batches for t in batch} for batches in (one, other))
    return tuple(sorted(ours ^ theirs))


def trained_rewards(run: AuditedRun) -> CheckOutcome:
    """Check that the trainer was sent the ledger's rewards and the advantages that follow from them.

    Of a restored step, the ledger may have lost the rewards; the advantages then still follow from the rewards that the
    trainer was sent.
    """
    found: list[Violation] = []
    examined = 0
    fed = {(step, item.trajectory): item for step, item in run.fed_items}
    for commit in run.history.commits:
        groups: dict[str, list[tuple[str, float, float]]] = {}
        for consumed in commit.consumed:
            item = fed.get((consumed.step, consumed.trajectory))
            if item is None:
                continue
            examined += 1
            groups.setdefault(group_of(consumed.trajectory), []).append(
                (consumed.trajectory, item.reward, item.advantage)
            )
            record = consumed.rewarded
            if record is not None and record.attempt == item.attempt and record.reward != item.reward:
                text = f"has the reward {record.reward:g} in the ledger, the trainer was sent {item.reward:g}"
                found.append(Violation((consumed.trajectory,), text))
        for siblings in groups.values():
            if commit.scales:
                wrong = [_wrong_advantages(siblings, scale_by_std=scale) for scale in sorted(commit.scales)]
                found += sorted(wrong, key=len)[0]
    return examined, found


def _wrong_advantages(siblings: list[tuple[str, float, float]], *, scale_by_std: bool) -> list[Violation]:
    """What the trainer was sent of a group (id, reward, advantage) and does not follow from its rewards."""
    expected = group_advantages([reward for _, reward, _ in siblings], scale_by_std=scale_by_std)
    return [
        Violation((name,), f"was trained with the advantage {sent:g}, its rewards give {right:g}")
        for (name, _, sent), right in zip(siblings, expected, strict=True)
        if not isclose(sent, right, rel_tol=1e-6, abs_tol=1e-9)
    ]


# ------------------------------------------------------------------------------------- versions


def versions(run: AuditedRun) -> CheckOutcome:
    """Check that versions count up, each from the manifest before, all rollbacks, and what was announced of them."""
    commits = [commit.record for commit in run.history.commits]
    found = list(run.history.misguided)
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
    found += _announced(run.history, run.evidence)
    return len(commits) + len(run.evidence.announced), found


def _announced(history: History, evidence: Evidence) -> Iterator[Violation]:
    """Say which announcements to engines are of no version of the ledger, or of no coordinator of its.

    The newest announcement is left. It may be older than the ledger's newest version, where a coordinator has died
    between the record and the announcement, but never ahead of it: a version is announced once its commit is recorded.
    """
    if evidence.live:  # the announcements were read after the ledger
        return
    commits = {commit.record.version: commit.record for commit in history.commits}
    revoked = {commit.record.manifest for commit in history.revoked}
    claimed = {claim.number for _, claim in history.records.claims}
    for said in evidence.announced:
        name = (f"version {said.version}",)
        # A power cut may have taken the claim of a coordinator that another one came after.
        lost = 1 <= said.epoch // EPOCH_STRIDE <= history.writers
        if said.epoch not in claimed and not lost:
            text = f"was announced by the writer epoch {said.epoch}, which the ledger lacks"
            later = f"{text}: `rljob run --resume` goes on from what is left"
            yield history.beyond_end(name, text, later)
        if said.version > history.version and said.manifest not in revoked:
            if history.finished is None:
                yield damage(name, "was announced, but neither ledger nor manifests have it")
            else:
                yield Violation(name, f"was announced, but the job ended at version {history.version}")
        elif said.version <= history.version and not _is_of(said, commits, revoked, evidence):
            yield Violation(
                name,
                f"was announced with the manifest {said.manifest[:12] or 'of none'}, which is another one",
            )


def _is_of(
    said: VersionAnnounced, commits: dict[int, StepCommitted], revoked: set[str], evidence: Evidence
) -> bool:
    """Whether an announcement names the ledger's manifest, or that of a version that was revoked or begun again."""
    known = commits.get(said.version)
    if (said.key, said.manifest) == ((known.key, known.manifest) if known is not None else (None, "")):
        return True
    left = {file.digest for file in evidence.manifests if file.version == said.version}
    current = known.manifest if known is not None else ""
    return said.manifest in revoked or (said.manifest in left and said.manifest != current)


def manifests(run: AuditedRun) -> CheckOutcome:
    """Check each version's manifest: its own digest, the digest in the ledger, and the commit record that it embeds."""
    by_key = {manifest.key: manifest for manifest in run.evidence.manifests}
    found = []
    for commit in run.history.commits:
        record = commit.record
        name = (f"version {record.version}",)
        manifest = by_key.get(record.key)
        if manifest is None:
            found.append(damage(name, f"has no manifest {record.key} in the weight store"))
        elif not manifest.intact:
            found.append(damage(name, f"its manifest {record.key} does not match its own digest"))
        elif manifest.digest != record.manifest or manifest.version != record.version:
            found.append(Violation(name, f"the ledger names another manifest than {record.key}"))
        elif manifest.proposal is None or replace(record, manifest="") != manifest.proposal:
            found.append(Violation(name, "its manifest holds another commit record than the ledger"))
    return len(run.history.commits), found


def attempts(run: AuditedRun) -> CheckOutcome:
    """Report the attempts, epochs and results that the history found out of order."""
    return run.history.records.valid, run.history.out_of_order


# ------------------------------------------------------------------------------------- the ledger itself


def unaltered(run: AuditedRun) -> CheckOutcome:
    """Check that each message has the digest of itself and all before it, and that the manifests' digests are of these.

    A manifest has the digest that the ledger had when its step's last micro-batch was sent. The ledger must have had
    it between the record of that micro-batch and the commit, unless the commit was restored: the ledger may have lost
    that digest. An earlier digest would leave what follows it open to be rewritten.
    """
    found: list[Violation] = []
    seen: dict[str, int] = {}
    for message in run.evidence.ledger:
        if not message.counts:
            continue
        if message.digest != message.expected_digest:
            text = (
                "does not have the digest of what it holds and of what precedes it: one of them was altered"
            )
            found.append(damage((f"message {message.sequence}",), text))
        seen.setdefault(message.digest, message.sequence)
    found += _misnamed(run, seen)
    return len(seen), found


def _misnamed(run: AuditedRun, seen: dict[str, int]) -> Iterator[Violation]:
    """Commits whose manifest names another digest than the ledger (`seen`) had while the step's proposal was due."""
    assigned = 0
    ledger, writer = run.evidence.ledger, run.history.records.writer
    valid = {message.sequence for message, _ in ValidRecords().batches(ledger)}
    for message in ledger:
        batch = message.batch
        if batch is None or not message.counts or batch.writer.number > writer.number:
            continue
        for record in batch.records:
            if isinstance(record, MicroBatchAssigned) and message.sequence in valid:
                assigned = message.sequence
            elif isinstance(record, StepCommitted):
                name, named = (f"version {record.version}",), seen.get(record.ledger)
                if named is None or named >= message.sequence:
                    yield Violation(name, "its manifest names a ledger that this one does not continue")
                elif named < assigned:
                    text = (
                        f"its manifest names the ledger up to message {named}, but the step's last micro-batch is in "
                        f"message {assigned}"
                    )
                    yield Violation(name, text)


def snapshots(run: AuditedRun) -> CheckOutcome:
    """Check that each snapshot equals the state after all earlier records.

    The state is computed by the coordinator's own code (`rljob_core.job_state`), because the snapshot is of that state.
    """
    ledger = run.evidence.ledger
    places = [
        place for place, message in enumerate(ledger) if message.counts and message.snapshot is not None
    ]
    found: list[Violation] = []
    state = JobState()
    for message in ledger[: places[-1] + 1] if places else ():
        if not message.counts:
            continue
        name = (f"snapshot {message.sequence}",)
        try:
            if message.batch is not None:
                state.replay([message.batch])
            elif message.snapshot is not None and (
                fields := snapshot.differences(message.snapshot, snapshot.dump(state))
            ):
                found.append(
                    Violation(name, f"is not what the records before it lead to: {', '.join(fields)}")
                )
        except (ProtocolViolation, LookupError) as error:
            text = f"cannot be compared: message {message.sequence} contradicts those before it: {error}"
            found.append(Violation((f"snapshot {ledger[places[-1]].sequence}",), text))
            break
        except ValueError as error:
            found.append(damage(name, f"cannot be read: {error}"))
    return len(places), found
