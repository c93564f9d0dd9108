"""`KindWatch` lists one kind of object once and then watches it; `ChildWatches` does so with all kinds of children.

`OptionalWatch` does so once it is told to: until then the operator makes no request about the kind, and needs no right.

kopf does not watch them, because a job of ten pods makes a hundred events, and all that an event has to do is to update
a cache and to mark jobs for a reconcile. After a watch was interrupted for so long that the API server no longer knows
its resource version, `KindWatch` lists again and reports the objects that were deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial

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
_REFUSED = {403, 404}
_BACKOFF = Backoff(first=0.2, last=10.0)


class KindWatch:
    """The objects of one kind in one namespace, or, with `""`, in all of them.

    Args:
        api: lists and watches.
        selector: of labels; empty for every object.
        seen: called with each event's type and object.
        unlisted: called after each list but the first, with the addresses of the objects in it and its version;
            returns the objects that are known and missing from it, which are reported as deleted.
        failed: called when the API server refuses to list or watch, or does not answer.
        backoff: delays between attempts.
    """

    def __init__(
        self,
        api: KubeApi,
        kind: str,
        namespace: str,
        *,
        selector: str,
        seen: Callable[[str, Manifest], None],
        unlisted: Callable[[Set[Ref], str], Iterable[Manifest]],
        failed: Callable[[ApiError], None],
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._seen = seen
        self._unlisted = unlisted
        self._failed = failed
        self._backoff = backoff
        self._version = ""

    async def read(self, take: Callable[[Manifest], object]) -> tuple[set[Ref], str]:
        """Take all objects of a list, without calling `seen`; returns their addresses and the list's version.

        Raises:
            ApiError: they cannot be listed.
        """
        there: set[Ref] = set()
        version = ""
        async for page in self._api.pages(self._kind, self._namespace, self._selector):
            version = page.version or version
            for manifest in page.manifests:
                there.add(Ref.of(manifest))
                self._hand(take, manifest)
        self._version = version
        return there, version

    async def follow(self) -> None:
        """Report all changes; returns only when cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._read_again()
                async for event, manifest in self._api.watch(
                    self._kind, self._namespace, self._selector, self._version
                ):
                    failures = 0
                    self._version = manifest["metadata"]["resourceVersion"]
                    if event != "BOOKMARK":
                        self._hand(partial(self._seen, event), manifest)
            except ApiError as error:
                failures += 1
                if error.status == _GONE:
                    self._version = ""
                else:
                    # Only the first failure is a warning: there are many watches, and each one retries.
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    log.log(level, "watching %s: %s", KINDS[self._kind][1], error)
                if error.status in _REFUSED:  # a list shows that the API server does not refuse any more
                    self._version = ""
                self._failed(error)
                await asyncio.sleep(self._backoff.delay(failures))

    async def _read_again(self) -> None:
        """List again, and report as deleted what is known and the list has not."""
        there, version = await self.read(partial(self._seen, "ADDED"))
        for manifest in self._unlisted(there, version):
            self._hand(partial(self._seen, "DELETED"), manifest)

    def _hand(self, take: Callable[[Manifest], object], manifest: Manifest) -> None:
        """Hand an object on. One that cannot be read is passed over: what others write must not end the watch."""
        try:
            take(manifest)
        except Exception:
            log.exception("%s cannot be read", Ref.of(manifest))


class OptionalWatch(ABC):
    """The objects of a kind that not every operator may read, or has to.

    Args:
        api: lists and watches.
        kind: of the objects.
        namespaces: the watched ones; `""` for all.
        selector: of labels; empty for every object.
        words: what an administrator has to do, by the HTTP status of the API server's refusal.
        readable: called when they become readable or unreadable.
        backoff: delays between attempts.

    Attributes:
        are_read: whether they have been read, or could not be.
        unreadable: why they cannot be read; empty if they can.
    """

    def __init__(
        self,
        api: KubeApi,
        kind: str,
        namespaces: Sequence[str],
        *,
        selector: str,
        words: Mapping[int, str],
        readable: Callable[[], None],
        backoff: Backoff,
    ) -> None:
        self.are_read = False
        self.unreadable = ""
        self._words = words
        self._readable = readable
        self._wanted = asyncio.Event()
        self._reading = asyncio.Lock()
        self._watches = [
            KindWatch(
                api, kind, namespace, selector=selector,
                seen=self._seen, unlisted=self._unlisted, failed=self._failed, backoff=backoff,
            )
            for namespace in namespaces
        ]  # fmt: skip

    @abstractmethod
    def put(self, manifest: Manifest) -> None:
        """Take in an object, as the API server has it."""

    @abstractmethod
    def _seen(self, event: str, manifest: Manifest) -> None:
        """Handle a watch event."""

    @abstractmethod
    def _known(self) -> Iterable[Manifest]:
        """The objects that were taken in."""

    async def read(self) -> None:
        """Read all objects for the first time, and let `run` follow them; from then on this does nothing.

        Raises:
            ApiError: the API server does not answer.
        """
        async with self._reading:
            if self.are_read:
                return
            try:
                for watch in self._watches:
                    await watch.read(self.put)
            except ApiError as error:
                if error.status not in self._words:
                    raise
                self.unreadable = self._words[error.status]
            self.are_read = True
            self._wanted.set()

    async def run(self) -> None:
        """Follow the objects once they have been read; returns only when cancelled."""
        await self._wanted.wait()
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.follow())

    def _unlisted(self, there: Set[Ref], _version: str) -> Iterable[Manifest]:
        self._set_unreadable("")
        return [manifest for manifest in self._known() if Ref.of(manifest) not in there]

    def _failed(self, error: ApiError) -> None:
        if error.status in self._words:
            self._set_unreadable(self._words[error.status])

    def _set_unreadable(self, why: str) -> None:
        if self.unreadable != why:
            self.unreadable = why
            self._readable()


class ChildWatches:
    """The watches of all kinds of children, one for each kind and namespace.

    Args:
        api: lists and watches.
        cache: is asked for objects that a new list no longer has, and filled by `read`.
        namespaces: to watch; `""` is all of them.
        seen: called with each event's type and object.
        kinds: to watch.
        unreachable: called when a watch fails because the API server does not answer.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: KubeCache,
        namespaces: Sequence[str],
        *,
        seen: Callable[[str, Manifest], None],
        kinds: Sequence[str] = CHILD_KINDS,
        unreachable: Callable[[], None] = lambda: None,
    ) -> None:
        self._cache = cache
        self._unreachable = unreachable
        self._watches = [
            KindWatch(
                api,
                kind,
                place,
                selector=LABEL_JOB,
                seen=seen,
                unlisted=self._unlisted(kind, place),
                failed=self._failed,
            )
            for kind in kinds
            for place in namespaces
        ]

    async def read(self) -> None:
        """Fill the cache with all children, without calling `seen`.

        Raises:
            ApiError: a kind cannot be listed.
        """
        for watch in self._watches:
            await watch.read(self._cache.put)
        self._cache.filled = True

    async def run(self) -> None:
        """Watch all kinds; returns only when cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.follow())

    def _unlisted(self, kind: str, place: str) -> Callable[[Set[Ref], str], Iterable[Manifest]]:
        return lambda there, version: self._cache.unlisted(kind, place, there, version)

    def _failed(self, error: ApiError) -> None:
        if error.status == 0:
            self._unreachable()
