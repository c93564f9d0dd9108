"""What a job can recover from: the state outside the ledger, and the versions whose weights are intact.

A commit is in three places: the ledger's record, the manifest in the weight store and the announcement to the
engines. When a server loses the end of the ledger, the other two say what the lost records said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from pydantic import ValidationError

from rljob_core.actions import StoresRead
from rljob_core.errors import WeightsRejected
from rljob_core.messages import STEP_METRICS, VERSION_ANNOUNCED
from rljob_core.ports import Channel, MessageStore, WeightStore


async def read_stores(store: MessageStore, weights: WeightStore, version: int) -> StoresRead:
    """Proposals of commits after `version` in the weight store, the manifest that was announced last, and counts.

    Args:
        store: the job's streams, open.
        weights: the job's weight store.
        version: the newest version in the ledger.
    """
    found = await asyncio.to_thread(proposals_after, weights, version)
    announced = await store.last(Channel.VERSIONS)
    seconds, tokens = await counted(store)
    return replace(
        found,
        announced=VERSION_ANNOUNCED.validate_json(announced.data).manifest if announced else "",
        seconds=seconds,
        tokens_generated=tokens,
    )


async def counted(store: MessageStore) -> tuple[float, int]:
    """The job's seconds and generated tokens by its newest line of metrics; zeros if there is none to be read."""
    newest = await store.last(Channel.METRICS)
    try:
        line = STEP_METRICS.validate_json(newest.data if newest is not None else b"")
    except ValidationError:
        return 0.0, 0
    return line.seconds, line.tokens_generated


def proposals_after(weights: WeightStore, version: int) -> StoresRead:
    """Proposals of commits after `version` in the weight store; nothing is known of announcements."""
    manifests = weights.proposals(version)
    return StoresRead(
        tuple(replace(m.proposal, manifest=m.digest) for m in manifests if m.proposal is not None), ""
    )


def is_intact(weights: WeightStore, key: str, digest: str) -> bool:
    """Whether the weight store holds a version's tensors, each with its digest, under the expected manifest.

    Args:
        key: the version's key in the weight store.
        digest: of the manifest that the ledger (or the next version) names.
    """
    try:
        manifest = weights.manifest(key)
        for _ in weights.read(manifest):
            pass
    except WeightsRejected:
        return False
    return manifest.digest == digest


def intact_versions(weights: WeightStore, versions: Iterable[tuple[int, str, str]]) -> list[int]:
    """Those of the versions whose weights are intact.

    Args:
        versions: number, key and digest of the manifest, of each.
    """
    stored = {manifest.digest for manifest in weights.manifests()}
    return [v for v, key, digest in versions if digest in stored and is_intact(weights, key, digest)]


def intact_versions_before(weights: WeightStore, digest: str, version: int) -> list[int]:
    """The ancestors of a version whose weights are intact, found without the ledger by the parents in the manifests.

    If the version's own manifest is damaged, its ancestors are unknown: all intact earlier versions are returned.

    Args:
        digest: of the version's manifest.
        version: its number.
    """
    parents = {manifest.digest: manifest.parent for manifest in weights.proposals(0)}
    chain, parent = set(), parents.get(digest)
    while parent:
        chain.add(parent)
        parent = parents.get(parent)
    earlier = [m for m in weights.manifests() if m.version < version and (m.digest in chain or not chain)]
    return intact_versions(weights, ((m.version, m.key, m.digest) for m in earlier))
