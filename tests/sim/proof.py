"""Checks a finished simulated job's invariants on its ledger, its manifests and its trainer's logs.

Unlike the audit, these checks know which faults happened (`Job.happened`, `Job.may_be_dead`), so they can demand more.
Names in [brackets] are those of the invariants in `docs/design/staleness.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from episode_proof import Payload, check_failures, explains, require

from rljob_core.job_state import ENGINE_LOST, JobState, Sibling
from rljob_core.planner.results import INVALID
from rljob_core.planner.site_links import AWAY_HEARTBEATS, GRACE_HEARTBEATS
from rljob_core.ports import Channel, WeightManifest
from rljob_core.records import (
    FED,
    Dispatched,
    Evaluated,
    FedMicroBatch,
    Generated,
    GroupAborted,
    Inherited,
    JobFinished,
    MicroBatchAssigned,
    Record,
    SiblingReset,
)
from rljob_core.trajectory import State, group_of, prompt_of_group
from rljob_runtime.messaging.ledger import CLAIM, RECORDS, Chain, read_batch

if TYPE_CHECKING:
    from simulation import Job


REASONS = {
    "dies": "EngineLost",
    "hangs": "EngineLost",
    "refuses": "EngineRefused: RuntimeError: no kernel",
    "empty": "it has no tokens",
    "unsendable": "PromptUnsendable",
    "unscored": "Reward",
}
"""What the ledger says of a group that is given up, by the kind of poison."""


PATIENCE_SECONDS = 120.0
"""For which a coordinator may send work into a cut: it may be frozen for 50 s, and its own heartbeats may be late."""


def prove(job: Job) -> bool:
    """Check all invariants; return False without checking if the ledger lost the job's end that the trainer acted on.

    Raises:
        Refuted: an invariant does not hold.
    """
    state, assigned = _follow(job)
    finished = state.finished
    if finished is None and job.cut_after_end:
        return False
    unlearnable = job.mishaps.unlearnable
    if finished is not None and _is_ended_by_games(job, finished):
        job.happened["ended by games"] += 1
    elif finished is not None and finished.outcome == "Failed" and unlearnable is not None:
        require(
            unlearnable.is_named_in(finished.failure.detail if finished.failure else ""),
            f"[unlearnable] {unlearnable}: {finished}",
        )
        job.happened["unlearnable named"] += 1
    else:
        succeeded = finished is not None and finished.outcome == "Succeeded"
        require(succeeded, f"[progress] the job ended as {finished}")
        require(state.version >= job.config.spec.steps, f"[progress] it ended at version {state.version}")
    require(not state.groups, f"[lost] groups without an end: {', '.join(state.groups)}")
    chain = _chain(job, state)
    fed = list(_fed(job))
    _check_consumed(job, chain, fed)
    if job.games is not None:
        check_failures(job.games, (record for _, record in records_of(job)))
    _check_given_up(job)
    _check_outputs(job)
    _check_links(job)
    if unlearnable is not None:
        proposals = [manifest.proposal for manifest in chain if manifest.proposal is not None]
        trained = {group_of(t) for proposal in proposals for part in proposal.micro_batches for t in part}
        require(unlearnable.group not in trained, f"[unlearnable] {unlearnable} was committed")
    if "cut" not in job.happened:
        for line in fed:
            key = (line.step, line.micro_batch, line.attempt, line.epoch)
            groups = tuple(dict.fromkeys(group_of(item.trajectory) for item in line.items))
            require(groups in assigned.get(key, ()), f"[acted] {key} was fed and never assigned")
    return True


def _is_ended_by_games(job: Job, finished: JobFinished) -> bool:
    """Whether more prompts of a step were given up than it has, some of them for their games, which end by chance."""
    if job.games is None or finished.failure is None or "were given up" not in finished.failure.detail:
        return False
    given_up = [
        r for _, r in records_of(job) if isinstance(r, GroupAborted) and r.reason == "PromptExhausted"
    ]
    harmed = any(job.games.harm[False, prompt_of_group(record.group)] for record in given_up)
    return harmed and len(given_up) > job.config.spec.data.prompts_per_step


def _check_outputs(job: Job) -> None:
    """No engine is blamed for its responses, as all of them work correctly, except those that are made not to."""
    false = _false(job)
    for _, record in records_of(job):
        if isinstance(record, SiblingReset) and record.failure and record.reason == INVALID:
            require(group_of(record.trajectory) in false, f"[output] a response was refused: {record}")
            job.happened[f"refused: {record.detail.partition(' ')[0]}"] += 1


def _false(job: Job) -> set[str]:
    """Groups to which engines are made to respond with what cannot be."""
    poison = job.mishaps.poison
    empty = poison.group if poison is not None and poison.kind == "empty" else ""
    return {job.mishaps.mislabelled, job.mishaps.garbled, job.mishaps.aged, empty} - {""}


def _check_given_up(job: Job) -> None:
    """Poison, and nothing beside it, is given up; unless engines were lost so often that chance may point at a group.

    Also games may fail by chance, and so may attempts that come from engines which are made to be wrong.
    """
    poison, most = job.mishaps.poison, job.config.spec.pipeline.max_attempts
    losses = sum(times for what, times in job.happened.items() if "rollout" in what)
    may_give_up = losses >= most
    for _, record in records_of(job):
        if isinstance(record, GroupAborted) and record.reason == "PromptExhausted":
            poisoned = poison is not None and record.group == poison.group
            if not poisoned and may_give_up and ENGINE_LOST in record.detail:
                job.happened["given up by chance"] += 1
                continue
            others = losses + (record.group in _false(job)) + poisoned * most
            if job.games is not None and explains(job.games, record, others=others, most=most):
                continue
            require(poisoned, f"[poison] {record.group} was given up: {record.detail}")
            reason = REASONS[poison.kind] if poison is not None else ""
            # Engines that are lost for other reasons, while they have nothing but it, count as attempts at it, too.
            said = reason in record.detail or ENGINE_LOST in record.detail
            require(said, f"[poison] {record.group} was given up for {record.detail}")
            job.happened["poison given up"] += 1
        elif isinstance(record, Evaluated):
            poisoned = all(poison is not None and f"e{prompt}" == poison.group for prompt in record.given_up)
            require(poisoned, f"[poison] the held-out prompts {record.given_up} were given up")
            job.happened["poison held out"] += len(record.given_up)
    if poison is not None and poison.sibling is None and not poison.tokens and not poison.is_held_out:
        consumed = {
            g
            for m in job.weights().proposals(0)
            for p in m.proposal.micro_batches
            for t in p
            for g in [group_of(t)]
        }
        require(poison.group not in consumed, f"[poison] {poison.group} was trained")


def records_of(job: Job) -> Iterator[tuple[JobState, Record]]:
    """Each record that counts, with the state before it."""
    chain, state = Chain(), JobState()
    for message in job.server.job(job.config.subject).streams[Channel.LEDGER].since(1):
        counts = chain.admits(message)
        require(counts or "cut" in job.happened, f"[fence] message {message.sequence} follows another one")
        if not counts or message.suffix not in {CLAIM, RECORDS}:
            continue
        batch = read_batch(message)
        in_charge = message.suffix == CLAIM or batch.writer == state.writer
        require(in_charge or "cut" in job.happened, f"[fence] message {message.sequence} is a zombie's")
        if in_charge:
            for record in batch.records:
                yield state, record
                if message.suffix != CLAIM:
                    state.apply(record)
        if message.suffix == CLAIM:
            state.replay([batch])


def _follow(job: Job) -> tuple[JobState, dict[tuple[int, int, int, int], list[tuple[str, ...]]]]:
    """The state at the end, and what was assigned."""
    whole = "cut" not in job.happened
    sent: dict[tuple[str, int], int] = {}
    inherited: dict[tuple[str, int], Inherited | None] = {}
    assigned: dict[tuple[int, int, int, int], list[tuple[str, ...]]] = {}
    state = JobState()
    for state, record in records_of(job):
        match record:
            case Dispatched():
                home = job.homes.get(record.engine.rpartition(".")[0], "")
                require(record.site == home, f"[site] {record.engine} is at {home!r}, not {record.site!r}")
                for key in zip(record.trajectories, record.attempts, strict=True):
                    made = record.inherited.get(key[0])
                    oldest = record.min_version if made is None else made.span.min
                    sent[key] = min(record.min_version, oldest)
                    inherited[key] = made
            case Generated() if whole:
                newest = state.version
                require(
                    record.span.max <= newest, f"[future] {record.trajectory} is of {record.span} at {newest}"
                )
                asked = sent[record.trajectory, record.attempt]
                require(record.span.min >= asked, f"[min] {record.trajectory} started below version {asked}")
                made = inherited[record.trajectory, record.attempt]
                require(
                    made is None
                    or (record.span.min <= made.span.min and record.response_tokens > made.tokens),
                    f"[inherited] {record.trajectory} did not go on from {made}",
                )
            case SiblingReset(reason="EngineLost" | "Drained"):
                sibling = state.sibling(record.trajectory)
                assert sibling is not None
                _check_stored(job, sibling)
                if record.reason == ENGINE_LOST and sibling.state is State.GENERATING and job.calm:
                    require(sibling.engine in job.may_be_dead, f"[lease] {sibling.engine} was alive")
            case SiblingReset(reason="SiteAway" | "WeightsAwaited"):
                _check_given_to_others(job, state, record)
            case SiblingReset():
                by_loss = record.reason in {"StalePayload", "RewardLost"}
                require(
                    not (by_loss and whole), f"[{record.reason}] {record.trajectory}, though nothing was lost"
                )
            case MicroBatchAssigned():
                key = (record.step, record.micro_batch, record.attempt, record.epoch)
                assigned.setdefault(key, []).append(record.groups)
    return state, assigned


def _check_stored(job: Job, sibling: Sibling) -> None:
    """Nothing is generated again that the site of an engine which has ended had stored: it was only late."""
    site = job.sites.get(sibling.site)
    is_certain = job.calm and not job.mishaps.faults.late_effect and sibling.engine not in job.frozen
    if site is None or not is_certain or site.faults.longest >= GRACE_HEARTBEATS:
        return
    job.happened["losses at a site"] += 1
    key = sibling.id, sibling.attempt
    require(
        key not in site.payloads, f"[stored] {key} is generated again, though {sibling.site} had stored it"
    )


def _check_given_to_others(job: Job, state: JobState, record: SiblingReset) -> None:
    """Only what the current step waits for is given to others, and only by a site that may have been away."""
    sibling = state.sibling(record.trajectory)
    assert sibling is not None
    require(not record.failure and not record.died, f"[away] {record.trajectory} is to blame")
    site = job.sites[job.homes[sibling.engine.rpartition(".")[0]]].faults
    step = state.buffers.buffer_of(group_of(record.trajectory)).step
    job.happened[f"given to others: {record.reason}"] += 1
    job.happened["given to others after the site's grace"] += step != state.version
    if record.reason == "SiteAway" and job.calm:
        require(
            site.longest >= AWAY_HEARTBEATS - 2, f"[away] {site.name} was given {site.longest} s to answer"
        )
    if record.reason == "WeightsAwaited" or site.longest < GRACE_HEARTBEATS:
        require(step == state.version, f"[current] {record.trajectory} of step {step} was not waited for yet")


def _check_links(job: Job) -> None:
    """Nothing was sent to a site that had been cut off for long: at least since two coordinators were replaced."""
    for site in job.sites.values():
        said = f"[away] {site.faults.name} was sent work {site.latest_work:.0f} s after its link was cut"
        require(site.latest_work <= PATIENCE_SECONDS or not job.calm, said)


def _chain(job: Job, state: JobState) -> list[WeightManifest]:
    """Manifests of the versions that count, the oldest first."""
    by_digest = {manifest.digest: manifest for manifest in job.weights().proposals(0)}
    chain: list[WeightManifest] = []
    digest = state.commit.manifest
    while digest:
        require(digest in by_digest, f"[chain] the manifest {digest} is missing")
        chain.append(by_digest[digest])
        digest = chain[-1].parent
    require(
        [m.version for m in reversed(chain)] == list(range(1, state.version + 1)),
        "[chain] a version is missing",
    )
    return chain[::-1]


def _fed(job: Job) -> Iterator[FedMicroBatch]:
    for path in sorted((job.folder / "trainer").glob("attempt-*.jsonl")):
        whole, _, _ = path.read_bytes().rpartition(b"\n")  # a line that a power cut has cut off was never fed
        yield from map(FED.validate_json, whole.splitlines())


def _check_consumed(job: Job, chain: list[WeightManifest], fed: list[FedMicroBatch]) -> None:
    consumed: Counter[str] = Counter()
    payloads: list[Payload] = []
    for manifest in chain:
        commit = manifest.proposal
        assert commit is not None
        ids = [trajectory for part in commit.micro_batches for trajectory in part]
        consumed.update(ids)
        sizes = set(Counter(map(group_of, ids)).values())
        require(sizes == {job.config.spec.data.group_size}, f"[whole] step {commit.version - 1} took parts")
        lines = [
            line
            for line in fed
            if (line.step, line.attempt, line.epoch) == (commit.version - 1, commit.attempt, commit.epoch)
        ]
        starts = [place for place, line in enumerate(lines) if line.micro_batch == 0]
        require(bool(starts), f"[truth] the trainer's log has lost what version {commit.version} was made of")
        runs = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
        made_of = [tuple(tuple(i.trajectory for i in line.items) for line in run) for run in runs]
        require(
            commit.micro_batches in made_of, f"[truth] version {commit.version} was not made of what it says"
        )
        for line in runs[made_of.index(commit.micro_batches)]:
            for item in line.items:
                stale = commit.version - 1 - item.span.min
                require(stale <= commit.max_staleness, f"[bound] {item.trajectory} was {stale} versions old")
            payloads += [(item.trajectory, item.attempt, item.digest) for item in line.items]
    require(max(consumed.values(), default=1) == 1, "[once] a trajectory was trained twice")
    if job.fed_episodes is not None:
        job.fed_episodes.check_whole(payloads)
