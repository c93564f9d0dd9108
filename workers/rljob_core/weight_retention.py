"""PURE. Which versions' tensors may go: those that nobody asks for any more, and on which nothing rests."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_core.ports import WeightManifest


def deletable(versions: Iterable[WeightManifest], *, needed_from: int) -> list[str]:
    """Keys of versions below `needed_from` that no needed one rests on, the oldest first.

    A delta needs its base, that one's base, and so on down to the anchor. Of several proposals of one version each is
    looked at by itself, for any of them may be the one that is committed.
    """
    versions = sorted(versions, key=lambda manifest: (manifest.version, manifest.key))
    needed: set[str] = set()
    for manifest in reversed(versions):  # a base is older than what applies to it
        if manifest.version >= needed_from or manifest.key in needed:
            needed.add(manifest.key)
            if manifest.base is not None:
                needed.add(manifest.base.key)
    return [manifest.key for manifest in versions if manifest.key not in needed]
