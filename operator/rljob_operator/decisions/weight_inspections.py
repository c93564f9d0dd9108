"""Whether a site's copy of the weights lacks what it had, as after a power cut at the site.

A server that loses what it had not synced has confirmed it: the hub does not send it again, and the copy passes over
it without an error. Its engines would miss a delta, and wait until the next anchor.

So with each process of the site's server the hub asks what the copy has (`CopyInspection`), and compares. The site
counts after the hub has read how much was confirmed, and the hub counts its own messages after that. Of a version that
is still being written, or on its way, the end may come and the beginning be lost: the hub asks again once such versions
are whole or gone. Those that begin later were never confirmed to the process before, and are not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_core.weight_messages import CHUNK, MANIFEST, PART, has_tensors, kept_keys, lacking_at_copy
from rljob_operator.decisions.joined_streams import MOST_VERSIONS, CopyId, CopyInspection

_SHOWN = 3
"""Keys in a message."""
_AGAIN_SECONDS = 60.0
"""After which a job that is joined is looked at again: somebody may have deleted a consumer."""
_INSPECTED_SECONDS = 5.0
"""After which a site's copy that was inspected is inspected again, as versions may be written."""


def inspection(
    *,
    server: str,
    copy_id: CopyId,
    confirmed: int,
    original: Mapping[str, int],
    manifests: Mapping[str, int],
    before: CopyInspection | None,
) -> CopyInspection:
    """What to ask of a copy: what was asked before, while all that is awaited still is.

    Args:
        server: id of the process of the site's server.
        copy_id: of the copy.
        confirmed: sequence of the last message that the copy has confirmed, read before what follows.
        original: number of messages of each suffix at the hub.
        manifests: sequences of the manifests of versions whose tensors are stored, by key.
        before: what was asked before of the same copy and process; None if nothing was.
    """
    begun = (s.partition(".")[2] for s in original if s.startswith(f"{CHUNK}."))
    awaited = {key for key in begun if f"{MANIFEST}.{key}" not in original and has_tensors(key, original)}
    awaited |= {key for key, sequence in manifests.items() if sequence > confirmed}
    if before is not None:
        awaited &= set(before.awaited)
        if len(awaited) == len(before.awaited):
            return before
    keys = tuple(sorted(awaited)[-MOST_VERSIONS:])
    return CopyInspection(server=server, copy_id=copy_id, confirmed=confirmed, awaited=keys)


def next_look(
    asked: CopyInspection | None, before: CopyInspection | None = None, pause: float = 0.0
) -> float:
    """Seconds until a job is looked at again; a site that answers has it looked at earlier.

    Args:
        asked: of the site's copy of the weights now; None for nothing.
        before: what was asked by the last look. While it is the same, each pause is twice as long as the one before.
        pause: after the last look.
    """
    if asked is None or not asked.copy_id:
        return _AGAIN_SECONDS
    return min(2 * pause, _AGAIN_SECONDS) if asked == before else _INSPECTED_SECONDS


def is_over(asked: CopyInspection) -> CopyInspection:
    """The inspection once nothing more is to be asked of that process of the site's server."""
    return CopyInspection(server=asked.server)


def versions_at_copy(suffixes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What a site says of its copy: see `StreamsReport.versions`.

    Args:
        suffixes: number of messages of each.
    """
    keys = sorted(kept_keys(suffixes))[-MOST_VERSIONS:]
    return {key: (suffixes[f"{CHUNK}.{key}"], suffixes.get(f"{PART}.{key}", 0)) for key in keys}


def weights_lost(site: str, lost: Sequence[str]) -> str:
    """What a site has lost, for people.

    Args:
        site: its name.
        lost: keys of versions.
    """
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return (
        f"the NATS server of Site {site} has lost messages of weights that it had stored, of {', '.join(lost[:_SHOWN])}"
        f"{more}, as by a power cut: its copy is made again, and engines there wait for it. "
        "With sync_interval: always, it would lose nothing"
    )


def lost_at_copy(
    asked: CopyInspection,
    versions: Mapping[str, tuple[int, int]],
    original: Mapping[str, int],
    manifests: Mapping[str, int],
) -> list[str]:
    """Keys of the versions that a copy has lost, or a part of.

    Args:
        asked: what the site has answered.
        versions: its answer.
        original: number of messages of each suffix at the hub, counted after that.
        manifests: as for `inspection`.
    """
    copy: dict[str, int] = {}
    for key, (chunks, parts) in versions.items():
        copy |= {f"{MANIFEST}.{key}": 1, f"{CHUNK}.{key}": chunks, f"{PART}.{key}": parts}
    oldest = min(versions) if len(versions) == MOST_VERSIONS else ""
    known = {key: sequence for key, sequence in manifests.items() if key >= oldest}
    return lacking_at_copy(original, copy, known, first=1, last=asked.confirmed)
