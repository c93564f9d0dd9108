"""Watches of the children: each kind is listed once, and then followed without end.

Not by kopf: a job of ten pods makes a hundred events, of which none needs more than a place in the cache and a mark.
And where a watch was interrupted for too long, what was deleted meanwhile has to be found out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KINDS, ApiError, KubeApi
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.kube.cluster import CHILD_KINDS
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import LABEL_JOB

log = logging.getLogger(__name__)

_GONE = 410
_BACKOFF = Backoff(first=0.2, last=10.0)


class ChildWatches:
    """Watches of all child kinds.

    Args:
        namespaces: that are watched; `""` is all of them.
        seen: told of each event's type and object.
        unreachable: called when a watch fails because the API server does not answer.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: KubeCache,
        namespaces: Sequence[str],
        *,
        seen: Callable[[str, Manifest], None],
        unreachable: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._seen = seen
        self._unreachable = unreachable
        self._versions = dict.fromkeys([(kind, place) for kind in CHILD_KINDS for place in namespaces], "")

    async def read(self) -> None:
        """Put what is there into the cache, telling nobody.

        Raises:
            ApiError: something cannot be listed.
        """
        for kind, namespace in self._versions:
            async for page in self._api.pages(kind, namespace, LABEL_JOB):
                self._versions[kind, namespace] = page.version
                for manifest in page.manifests:
                    self._cache.put(manifest)

    async def run(self) -> None:
        """Follow everything, without end."""
        async with asyncio.TaskGroup() as group:
            for kind, namespace in self._versions:
                group.create_task(self._follow(kind, namespace))

    async def _follow(self, kind: str, namespace: str) -> None:
        failures = 0
        while True:
            try:
                if not self._versions[kind, namespace]:
                    await self._read_again(kind, namespace)
                async for event, manifest in self._api.watch(
                    kind, namespace, LABEL_JOB, self._versions[kind, namespace]
                ):
                    failures = 0
                    self._versions[kind, namespace] = manifest["metadata"]["resourceVersion"]
                    if event != "BOOKMARK":
                        self._seen(event, manifest)
            except ApiError as error:
                failures += 1
                if error.status == _GONE:
                    self._versions[kind, namespace] = ""
                else:
                    # Once for each outage: there are many watches, and each tries again and again.
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    log.log(level, "watching %s: %s", KINDS[kind][1], error)
                if error.status == 0:
                    self._unreachable()
                await asyncio.sleep(_BACKOFF.delay(failures))

    async def _read_again(self, kind: str, namespace: str) -> None:
        """List, and find what has gone since the last event."""
        there: set[Ref] = set()
        version = ""
        async for page in self._api.pages(kind, namespace, LABEL_JOB):
            version = page.version
            for manifest in page.manifests:
                there.add(Ref.of(manifest))
                self._seen("ADDED", manifest)
        for manifest in self._cache.unlisted(kind, namespace, there, version):
            self._seen("DELETED", manifest)
        self._versions[kind, namespace] = version
