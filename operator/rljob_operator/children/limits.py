"""Limits of what one job may make the operator render, store and remember.

Each pool has two copies of the job's configuration (its RolloutPool runs without the RLJob, and its pods mount a
ConfigMap), so the size of all children grows with the size of the spec times the number of pools. The operator holds
the children of every job in memory, several times while it writes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rljob_core.errors import SpecError
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest, Ref

MOST_BYTES = 16 * 2**20
"""Of all children of a job, as JSON."""
MOST_BYTES_OF_ONE = 1_000_000
"""Of one child: API servers store objects of 1.5 MiB at most, with what they add, and ConfigMaps of 1 MiB."""

_REMEDY = (
    "shorten the texts, options and templates of the spec, or keep them in files of the image or of a claim"
)


def check_configuration(job: ResolvedJob) -> None:
    """Refuse a job by the size of its configuration alone, before anything is rendered.

    Raises:
        SpecError: the copies of the configuration would exceed a limit.
    """
    copies = 2 + 2 * len(job.spec.rollout.pools)
    size = len(job.config_text.encode())
    if size > MOST_BYTES_OF_ONE:
        raise SpecError("spec", f"takes {_mb(size)}, of at most {_mb(MOST_BYTES_OF_ONE)}: {_REMEDY}")
    if size * copies > MOST_BYTES:
        raise SpecError(
            "spec",
            f"takes {_mb(size)}, and with {len(job.spec.rollout.pools)} pools there would be {copies} copies of it, "
            f"{_mb(size * copies)} of at most {_mb(MOST_BYTES)}: {_REMEDY}, or use fewer pools",
        )


def check_sizes(children: Sequence[Manifest]) -> None:
    """Refuse children that are too large.

    Raises:
        SpecError: one child, or all together, exceed a limit.
    """
    total = 0
    for child in children:
        size = len(json.dumps(child))
        total += size
        if size > MOST_BYTES_OF_ONE:
            raise SpecError(
                "spec",
                f"makes {Ref.of(child)} {_mb(size)} large, of at most {_mb(MOST_BYTES_OF_ONE)}: {_REMEDY}",
            )
    if total > MOST_BYTES:
        raise SpecError(
            "spec",
            f"makes its {len(children)} children {_mb(total)} large, of at most {_mb(MOST_BYTES)}: {_REMEDY}, "
            "or use fewer pools",
        )


def check_names(children: Sequence[Manifest]) -> None:
    """Refuse children of the same kind and name, which two pools with long names can have.

    Raises:
        SpecError: two children have the same kind and name.
    """
    seen: set[Ref] = set()
    for ref in map(Ref.of, children):
        if ref in seen:
            raise SpecError("spec.rollout.pools", f"two pools would both have the {ref}: rename one of them")
        seen.add(ref)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
