"""`ChildWatches` lists each kind of child object once and then watches it for as long as the operator runs.

kopf does not watch the children, because a job of ten pods makes a hundred events, and all that an event has to do is
to update the cache and to mark its job for a reconcile. After a watch was interrupted for so long that the API server
no longer knows its resource version, `ChildWatches` lists again and reports the objects that were deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.kube.cluster import CHILD_KINDS
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.kinds import KINDS
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import LABEL_JOB

log = logging.getLogger(__name__)

_GONE = 410
_BACKOFF = Backoff(first=0.2, last=10.0)


class ChildWatches:
    """The watches of all kinds of children, one for each kind and namespace.

    Args:
        api: lists and watches.
        cache: is asked for objects that a new list no longer has, and filled by `read`.
        namespaces: to watch; `""` is all of them.
        seen: called with each event's type and object.
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
        """Fill the cache with all children, without calling `seen`.

        Raises:
            ApiError: a kind cannot be listed.
        """
        for kind, namespace in self._versions:
            async for page in self._api.pages(kind, namespace, LABEL_JOB):
                self._versions[kind, namespace] = page.version
                for manifest in page.manifests:
                    self._cache.put(manifest)
        self._cache.filled = True

    async def run(self) -> None:
        """Watch all kinds; returns only when cancelled."""
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
                    # Only the first failure is a warning: there are many watches, and each one retries.
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    log.log(level, "watching %s: %s", KINDS[kind][1], error)
                if error.status == 0:
                    self._unreachable()
                await asyncio.sleep(_BACKOFF.delay(failures))

    async def _read_again(self, kind: str, namespace: str) -> None:
        """List a kind again, and report as deleted what the cache has and the list has not."""
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
