"""The objects of gangs on an API server: which kinds it serves, and the objects of jobs, which are made and deleted.

They are not watched: a cluster need not have their kinds, and the operator reads nothing of them. It creates each once,
never changes it, and deletes it. Those of earlier operators are listed before a namespace's first gang is considered.
"""

from __future__ import annotations

import logging
import time

from rljob_core.spec import RLJob
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Manifest, NameTaken, Ref, Refused, Rejected, same_controller
from rljob_operator.names import LABEL_JOB

log = logging.getLogger(__name__)

SERVED_SECONDS = 20.0
"""For how long it counts whether a kind is served."""
_FORBIDDEN, _UNKNOWN, _CONFLICT = 403, 404, 409


class GangObjects:
    """The objects of gangs of one API server.

    Args:
        api: asks, lists, creates and deletes.
        cache: gets what is created and listed.
    """

    def __init__(self, api: KubeApi, cache: KubeCache) -> None:
        self._api = api
        self._cache = cache
        self._served: dict[GangKind, tuple[float, bool]] = {}
        self._read: set[tuple[GangKind, str]] = set()
        """Kinds and namespaces whose objects the cache has."""

    async def serves(self, kind: GangKind) -> bool:
        """Whether the API server has the kind, as it said at most `SERVED_SECONDS` ago.

        Raises:
            ApiError: it does not answer.
        """
        asked, answer = self._served.get(kind, (0.0, False))
        if kind not in self._served or time.monotonic() - asked > SERVED_SECONDS:
            answer = kind.plural in await self._api.resources(kind.api_version)
            self._served[kind] = time.monotonic(), answer
        return answer

    async def read(self, job: RLJob) -> None:
        """Take in the objects that an operator before this one has made in the job's namespace.

        Raises:
            ApiError: the API server does not answer.
        """
        namespace, trainer = job.metadata.namespace, job.spec.trainer
        if trainer.num_nodes == 1 and trainer.gang in {"Auto", "None"}:
            return  # it has none
        for kind in GangKind:
            if (kind, namespace) in self._read:
                continue
            try:
                known = await self.serves(kind)
                found = await self._api.list(kind.qualified, namespace, LABEL_JOB) if known else []
            except ApiError as error:
                if error.status not in {_FORBIDDEN, _UNKNOWN}:
                    raise
                log.warning("objects of gangs are not read: %s", error)
                found = []
            for manifest in found:
                self._cache.put(manifest)
            self._read.add((kind, namespace))

    def doubt(self, job: RLJob) -> None:
        """Read the objects of the job's namespace again before they are used: somebody may have deleted one unseen."""
        key = job.metadata.namespace, job.metadata.name
        for kind in GangKind:
            self._cache.forget_kind(key, kind.qualified)
        self._read = {
            (kind, namespace) for kind, namespace in self._read if namespace != job.metadata.namespace
        }

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> None:
        """Create an object; one of its name that is the job's stays as it is. With `dry_run`, nothing is written.

        Raises:
            NameTaken: an object of that name is not the job's.
            Rejected, Refused: as `Cluster.apply` does; lacking rights are `Refused`, since others may give them.
        """
        ref = Ref.of(manifest)
        try:
            made = await self._api.apply_new(manifest, dry_run=dry_run)
        except ApiError as error:
            if error.by_policy or error.status == _FORBIDDEN:
                raise Refused(ref, str(error)) from error
            if error.invalid:
                raise Rejected(str(error)) from error
            found = await self._api.find(ref) if error.status == _CONFLICT else None
            if found is None:
                raise
            if not same_controller(found, manifest):
                raise NameTaken(ref, found) from error
            made = found
        if not dry_run:
            self._cache.put(made)

    async def delete(self, ref: Ref, uid: str | None) -> None:
        """Delete an object, unless another one has its name by now; also one whose kind is gone."""
        try:
            await self._api.delete(ref, uid)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
        self._cache.forget(ref, uid)
