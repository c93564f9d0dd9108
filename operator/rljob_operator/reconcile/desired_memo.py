"""A cache of one job's child manifests: they are rendered again only when something changes that they depend on.

Most reconciles only update the job's status, and rendering the same manifests again would take most of their time. The
manifests are kept as bytes, which take a tenth of the memory of the objects; every reconcile gets a copy of its own.
"""

from __future__ import annotations

import marshal

from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.trainer_gang import trainer_hash
from rljob_operator.cluster.port import Manifest

_ChildrenInputs = tuple[object, ...]


class DesiredMemo:
    """The newest children of one job; the cluster's defaults must stay the same, but for links."""

    def __init__(self) -> None:
        self._key: _ChildrenInputs = ()
        self._made = b""
        self._trainer: tuple[bytes, str] = b"", ""

    def trainer_hash(self, job: ResolvedJob) -> str:
        """The result of `trainer_gang.trainer_hash`.

        Raises:
            SpecError: the trainer's pod template patch does not fit.
        """
        if self._trainer[0] != job.digest:
            self._trainer = job.digest, trainer_hash(job)
        return self._trainer[1]

    def __call__(self, job: ResolvedJob, targets: Targets) -> tuple[Manifest, ...]:
        """The result of `desired`.

        Raises:
            SpecError: a pod template patch does not fit.
        """
        key = _key(job, targets)
        if key != self._key:
            self._made = marshal.dumps(desired(job, targets))
            self._key = key
        made: tuple[Manifest, ...] = marshal.loads(self._made)  # noqa: S302 our own bytes
        return made


def _key(job: ResolvedJob, targets: Targets) -> _ChildrenInputs:
    """Everything that the children depend on."""
    pools = sorted(
        (
            name,
            pool["metadata"].get("uid"),
            pool["spec"].get("replicas"),
            sorted(pool["metadata"].get("annotations", {}).items()),
        )
        for name, pool in targets.pools.items()
    )
    scaled = sorted(targets.scaled.items())
    trainer = targets.attempt, targets.nodes, targets.gang, targets.failures, targets.has_run
    return job.digest, targets.lost_sites, *trainer, targets.restorable, targets.tokens_expire, scaled, pools
