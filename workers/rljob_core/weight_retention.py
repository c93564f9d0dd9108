"""Which versions' tensors may be deleted: those that no role reads any more and that no needed delta builds on."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_core.ports import WeightManifest


def deletable(versions: Iterable[WeightManifest], *, needed_from: int) -> list[str]:
    """Keys of versions below `needed_from` that no needed version builds on, the oldest first.

    A delta needs its base, that base's own base, and so on down to the anchor. Where several proposals of one version
    exist, each is treated by itself, since any of them may be the one that is committed.
    """
    versions = sorted(versions, key=lambda manifest: (manifest.version, manifest.key))
    needed: set[str] = set()
    for manifest in reversed(versions):  # a base is older than what applies to it
        if manifest.version >= needed_from or manifest.key in needed:
            needed.add(manifest.key)
            if manifest.base is not None:
                needed.add(manifest.base.key)
    return [manifest.key for manifest in versions if manifest.key not in needed]
