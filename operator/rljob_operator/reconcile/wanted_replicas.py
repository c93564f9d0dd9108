"""`WantedReplicas`: the operator's decisions about RolloutPools, from its cache, without a request."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.wanted_engines import NotDecided, NotYetRead, wanted_engines


class WantedReplicas:
    """How many engines the RolloutPools should have that exist.

    Args:
        cache: of the watched objects.
    """

    def __init__(self, cache: KubeCache) -> None:
        self._cache = cache

    def __iter__(self) -> Iterator[tuple[Ref, int]]:
        """All RolloutPools that are decided about."""
        for key in self._cache.jobs():
            for name, wanted in wanted_engines(self._cache.job(key) or {}).items():
                ref = Ref("RolloutPool", key[0], name)
                if self._cache.key_of(ref) == key:
                    yield ref, wanted.replicas

    def for_autoscaler(self, namespace: str, name: str) -> int:
        """How many engines the autoscaler of a RolloutPool should give it.

        Raises:
            NotYetRead: the operator has not read all objects since it started.
            NotDecided: nothing is decided, or the operator itself sets the number.
        """
        if not self._cache.filled:
            raise NotYetRead("the operator has not read the objects of jobs yet")
        key = self._cache.key_of(Ref("RolloutPool", namespace, name))
        if key is None:
            raise NotDecided(f"there is no RolloutPool {namespace}/{name}, or its job is suspended")
        if (job := self._cache.job(key)) is None:  # RLJobs are not listed together with their objects
            raise NotYetRead(f"the operator has not read RLJob {'/'.join(key)} yet")
        wanted = wanted_engines(job).get(name)
        if wanted is None:
            raise NotDecided(
                f"nothing is decided about RolloutPool {namespace}/{name}: its job has other pools of scaling policy "
                "Internal, or it has a fixed number of engines, or is new"
            )
        if not wanted.external:
            raise NotDecided(
                f"RolloutPool {namespace}/{name} has scaling policy Internal: the operator scales it"
            )
        return wanted.replicas
