"""What `desired` made last of one job, for as long as nothing that it is made from changes.

Most looks at a job are for its status: making its children anew, only to find that they are there, is most of a look's
time. The children are kept as bytes, which take a tenth of the room; each look gets a copy of its own.
"""

from __future__ import annotations

import marshal
from hashlib import sha256

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.cluster.port import Manifest

_Key = tuple[object, ...]


class DesiredMemo:
    """The newest of one job."""

    def __init__(self, defaults: ClusterDefaults) -> None:
        self._defaults = defaults
        self._key: _Key = ()
        self._made = b""

    def __call__(self, job: RLJob, targets: Targets) -> tuple[Manifest, ...]:
        """As `desired`.

        Raises:
            SpecError: a pod template patch does not fit.
        """
        key = _key(job, targets)
        if key != self._key:
            self._made = marshal.dumps(desired(job, self._defaults, targets))
            self._key = key
        made: tuple[Manifest, ...] = marshal.loads(self._made)  # noqa: S302 our own bytes
        return made


def _key(job: RLJob, targets: Targets) -> _Key:
    """All that the children depend on."""
    pools = sorted(
        (
            name,
            pool["metadata"].get("uid"),
            pool["spec"].get("replicas"),
            sorted(pool["metadata"].get("annotations", {}).items()),
        )
        for name, pool in targets.pools.items()
    )
    text = sha256(job.model_dump_json().encode()).digest()
    return text, targets.attempt, targets.failures, pools
