"""Rolls a job back to an earlier version, or opens an ended one again, while none of the job's processes runs.

Both happen at the user's request, and by the same record. A rollback does what a coordinator does at its start (replay
the ledger, claim an epoch, restore commits that the ledger has lost) and then appends the record, which revokes the
later versions. It changes nothing before it is certain that the version can be restored. A job that has
failed, or that is to train more steps than it has finished, is opened again by a rollback to its newest version, which
revokes none: only the end of the job is taken back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rljob_core.actions import Announce, PublishMetrics
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.job_state.versioned import VersionedState
from rljob_core.planner import Planner, recovery, training
from rljob_core.planner.context import Decision
from rljob_core.ports import Channel, MessageStore, WeightStore
from rljob_core.records import CheckpointSaved, StepCommitted
from rljob_runtime.messaging.announce import publish_metrics, publish_version
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.roles.recovery_sources import (
    counted,
    intact_versions,
    is_intact,
    proposals_after,
    read_stores,
)
from rljob_runtime.training.checkpoint_base import Checkpoints

FLAG = "--from-version"


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The result of a rollback.

    Attributes:
        version: the newest version now.
        revoked: number of versions that no longer count.
        trajectories: number of trajectories that the revoked versions were trained on.
        optimizer: version after which the optimizer state was saved that training continues with; None: a fresh one.
    """

    version: int
    revoked: int
    trajectories: int
    optimizer: int | None


@dataclass(frozen=True, slots=True)
class Reopened:
    """An ended job that continues.

    Attributes:
        version: the newest version, from which it continues.
        failure: the message with which it had failed; empty if it had succeeded.
    """

    version: int
    failure: str


async def roll_back(
    config: JobConfig,
    store: MessageStore,
    weights: WeightStore,
    checkpoints: Checkpoints,
    *,
    version: int,
    instance: str,
) -> RolledBack:
    """Revoke all versions after `version`.

    Args:
        config: of the job.
        store: the job's streams, open.
        weights: the job's weight store.
        checkpoints: the job's checkpoints.
        version: the version to return to.
        instance: the name under which the writer epoch is claimed.

    Raises:
        SpecError: the job cannot return to that version; the message names the versions that it can return to.
        CorruptLedger: see `Ledger.replay`.
        Fenced: a coordinator of the job is running.
    """
    pending = await _PendingClaim.take(config, store, instance)
    recovery.restore(pending.planner.context, await read_stores(store, weights, pending.state.version))
    chain = list(pending.state.chain)
    await asyncio.to_thread(_check, weights, chain, version, with_newest=pending.ledger.is_empty)
    return await _go_back(pending, store, weights, checkpoints, version=version)


async def reopen(
    config: JobConfig,
    store: MessageStore,
    weights: WeightStore,
    checkpoints: Checkpoints,
    *,
    instance: str,
) -> Reopened | None:
    """Take back the end of a job that has failed, or has finished fewer steps than `spec.steps` now says.

    It continues from its newest version, with the next prompts. What it failed of may have been mended since. If not,
    the job fails again, and says of what.

    Args:
        config: of the job.
        store: the job's streams, open.
        weights: the job's weight store.
        checkpoints: the job's checkpoints.
        instance: the name under which the writer epoch is claimed.

    Returns:
        None, and nothing is changed, if the job has not ended, or has succeeded with all of its steps.

    Raises:
        CorruptLedger: see `Ledger.replay`.
        Fenced: a coordinator of the job is running.
    """
    state = await Ledger(store, job=config.uid, instance=instance).replay()
    end = state.finished
    if end is None or (end.outcome == "Succeeded" and state.version >= config.spec.steps):
        return None
    pending = await _PendingClaim.take(config, store, instance)
    done = await _go_back(pending, store, weights, checkpoints, version=pending.state.version)
    return Reopened(done.version, "" if end.failure is None else end.failure.detail)


def versions_without_ledger(config: JobConfig, weights: WeightStore) -> list[int]:
    """The versions with intact weights that a job without a ledger can continue from, by the manifests' chain."""
    state = VersionedState()
    planner = Planner(config, state=state)
    recovery.restore(planner.context, proposals_after(weights, 0))
    return intact_versions(weights, ((c.version, c.key, c.manifest) for c in state.chain))


@dataclass(frozen=True, slots=True)
class _PendingClaim:
    """The whole ledger as it was read, and the decision to claim the next epoch, which is still to be recorded."""

    ledger: Ledger
    planner: Planner
    state: VersionedState
    claim: Decision

    @classmethod
    async def take(cls, config: JobConfig, store: MessageStore, instance: str) -> _PendingClaim:
        ledger = Ledger(store, job=config.uid, instance=instance)
        state = VersionedState()
        await ledger.replay(state)
        planner = Planner(config, state=state)
        claim = planner.start(instance, asyncio.get_running_loop().time())
        planner.context.metrics.continue_from(*await counted(store))
        return cls(ledger, planner, state, claim)


async def _go_back(
    pending: _PendingClaim,
    store: MessageStore,
    weights: WeightStore,
    checkpoints: Checkpoints,
    *,
    version: int,
) -> RolledBack:
    """Claim the epoch and revoke what came after the version."""
    state, chain = pending.state, list(pending.state.chain)
    checkpoint = await asyncio.to_thread(_newest_checkpoint, state, checkpoints, version)
    training.revoke(pending.planner.context, version, chain=chain, checkpoint=checkpoint)
    decision = pending.planner.context.flush_decision()
    await pending.ledger.claim(state.writer, pending.claim.records)
    # Before the record: if the process dies in between, the same command can be run again.
    await asyncio.to_thread(_delete_after, weights, checkpoints, version)
    await pending.ledger.append(state.writer, decision.records)
    # An event that nobody has acknowledged may be the one that ended the job: the next coordinator must not see it.
    await store.purge(Channel.EVENTS, ">")
    for action in decision.actions:
        match action:
            case Announce():
                await publish_version(store, action)
            case PublishMetrics():
                await publish_metrics(store, action)
    revoked = chain[version:]
    return RolledBack(
        version,
        len(revoked),
        sum(len(part) for commit in revoked for part in commit.micro_batches),
        checkpoint.version if checkpoint is not None else None,
    )


def _check(weights: WeightStore, chain: list[StepCommitted], version: int, *, with_newest: bool) -> None:
    """Check that the job can go back to a version; without a ledger, to continue from the newest is a choice, too."""
    newest = len(chain)
    if version == newest and not (with_newest and newest):
        problem = f"{version} is the newest version: to continue from it, omit the flag"
    elif version > newest:
        problem = f"there is no version {version}: the newest is {newest}"
    elif _is_intact(weights, chain, version):
        return
    else:
        problem = f"the weights of version {version} are deleted or damaged"
    intact = [
        0,
        *intact_versions(
            weights, ((c.version, c.key, c.manifest) for c in chain[: newest - 1 + with_newest])
        ),
    ]
    choice = f"{problem}. Versions that can be gone back to: {', '.join(map(str, intact))}"
    raise SpecError(
        FLAG, f"{choice} (0 is the initial model)" if newest else f"{problem}: nothing was trained"
    )


def _is_intact(weights: WeightStore, chain: list[StepCommitted], version: int) -> bool:
    return version == 0 or is_intact(weights, chain[version - 1].key, chain[version - 1].manifest)


def _newest_checkpoint(
    state: VersionedState, checkpoints: Checkpoints, version: int
) -> CheckpointSaved | None:
    """The newest checkpoint at or before the version that is still stored.

    The ledger names it, or has lost its record: a checkpoint names the manifest of the version that it is of.
    """
    named = {one.key: one for one in state.checkpoints}
    found = []
    for key in checkpoints.keys():  # noqa: SIM118  a method
        info = checkpoints.info(key)
        saved = named.get(key, CheckpointSaved(info.version, info.attempt, key))
        is_known = key in named or state.is_committed(info.version, info.manifest)
        if is_known and saved.version <= version:
            found.append(saved)
    return max(found, key=lambda one: one.version, default=None)


def _delete_after(weights: WeightStore, checkpoints: Checkpoints, version: int) -> None:
    """Delete weights and checkpoints of later versions, which new versions of the same number would meet."""
    for manifest in reversed(weights.manifests()):  # a delta before the version that it is based on
        if manifest.version > version:
            weights.delete(manifest.key)
    checkpoints.forget(after=version)
