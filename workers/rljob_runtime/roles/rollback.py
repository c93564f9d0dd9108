"""Going back to an earlier version, at the user's word, while none of the job's processes runs.

It is what a coordinator does when it takes charge (replay, claim, take back what the ledger has lost), and one record
more. Nothing is changed before it is clear that the version can be gone back to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_core.actions import Announce, PublishMetrics
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError, WeightsRejected
from rljob_core.planner import Planner, recovery, rollback
from rljob_core.ports import Channel, MessageStore, WeightStore
from rljob_core.records import CheckpointSaved, StepCommitted
from rljob_core.versions import VersionedState
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.roles.coordinator import publish_metrics, publish_version, read_stores
from rljob_runtime.training.checkpoints import CheckpointStore

FLAG = "--from-version"


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What was done.

    Attributes:
        version: the newest one now.
        revoked: how many versions do not count any more.
        trajectories: that these had consumed.
        optimizer: version after which the optimizer state was saved that training goes on with; None: fresh.
    """

    version: int
    revoked: int
    trajectories: int
    optimizer: int | None


async def roll_back(
    config: JobConfig,
    store: MessageStore,
    weights: WeightStore,
    checkpoints: CheckpointStore,
    *,
    version: int,
    instance: str,
) -> RolledBack:
    """Revoke all versions after `version`.

    Args:
        store: open.
        instance: by which the writer epoch is claimed.

    Raises:
        SpecError: the version is not one that can be gone back to; it names those that can.
        CorruptLedger: see `Ledger.replay`.
        Fenced: a coordinator of the job runs.
    """
    ledger = Ledger(store, job=config.uid, instance=instance)
    planner = Planner(config)
    planner.state = state = VersionedState()
    await ledger.replay(state)
    now = asyncio.get_running_loop().time()
    claim = planner.start(instance, now)
    recovery.restore(planner, await read_stores(store, weights, state.version))
    chain = list(state.chain)
    await asyncio.to_thread(_check, weights, chain, version)
    checkpoint = _checkpoint(state.checkpoints, checkpoints, version)
    rollback.revoke(planner, version, chain=chain, checkpoint=checkpoint)
    decision = planner.take_decision()
    await ledger.claim(state.writer, claim.records)
    # Before the record: what is interrupted in between can be done again as it was.
    await asyncio.to_thread(_remove, weights, checkpoints, version)
    await ledger.append(state.writer, decision.records)
    # What a process said last may be what ended the job; nobody has acknowledged it if its coordinator died over it.
    await store.purge(Channel.EVENTS, ">")
    for action in decision.actions:
        match action:
            case Announce():
                await publish_version(store, action)
            case PublishMetrics():
                await publish_metrics(store, action)
    gone = chain[version:]
    return RolledBack(
        version,
        len(gone),
        sum(len(part) for commit in gone for part in commit.micro_batches),
        checkpoint.version if checkpoint is not None else None,
    )


def _check(weights: WeightStore, chain: list[StepCommitted], version: int) -> None:
    newest = len(chain)
    if version == newest:
        problem = f"{version} is the newest version: to go on from it, leave the flag out"
    elif version > newest:
        problem = f"there is no version {version}: the newest is {newest}"
    elif version == 0 or is_whole(weights, chain[version - 1].key, chain[version - 1].manifest):
        return
    else:
        problem = f"the weights of version {version} are deleted or damaged"
    whole = [0, *whole_versions(weights, ((c.version, c.key, c.manifest) for c in chain[:-1]))]
    told = f"{problem}. Versions that can be gone back to: {', '.join(map(str, whole))}"
    raise SpecError(FLAG, f"{told} (0 is the initial model)" if newest else f"{problem}: nothing was trained")


def is_whole(weights: WeightStore, key: str, digest: str) -> bool:
    """Whether a version's weights are there, each digest verified, under the manifest of that digest."""
    try:
        manifest = weights.manifest(key)
        for _ in weights.read(manifest):
            pass
    except WeightsRejected:
        return False
    return manifest.digest == digest


def whole_before(weights: WeightStore, digest: str, version: int) -> list[int]:
    """Versions before `version`, whose manifest has that digest, that lead to it and whose weights are whole.

    Found by their parents, without the ledger; of all that are there if the version's own manifest is damaged.
    """
    parents = {manifest.digest: manifest.parent for manifest in weights.proposals(0)}
    chain, parent = set(), parents.get(digest)
    while parent:
        chain.add(parent)
        parent = parents.get(parent)
    there = [m for m in weights.manifests() if m.version < version and (m.digest in chain or not chain)]
    return whole_versions(weights, ((m.version, m.key, m.digest) for m in there))


def whole_versions(weights: WeightStore, versions: Iterable[tuple[int, str, str]]) -> list[int]:
    """Those of the versions (each with key and digest of its manifest) whose weights are whole."""
    there = {manifest.digest for manifest in weights.manifests()}
    return [v for v, key, digest in versions if digest in there and is_whole(weights, key, digest)]


def _checkpoint(
    saved: Iterable[CheckpointSaved], checkpoints: CheckpointStore, version: int
) -> CheckpointSaved | None:
    """The newest at or before the version that is still there."""
    there = set(checkpoints.keys())
    found = [one for one in saved if one.version <= version and one.key in there]
    return max(found, key=lambda one: one.version, default=None)


def _remove(weights: WeightStore, checkpoints: CheckpointStore, version: int) -> None:
    """What later versions left: it would be taken for newer than what is made now."""
    for manifest in reversed(weights.manifests()):  # a delta before what it rests on
        if manifest.version > version:
            weights.delete(manifest.key)
    checkpoints.forget(after=version)
