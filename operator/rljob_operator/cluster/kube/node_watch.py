"""`NodeWatch` watches the cluster's nodes for taints that announce the end of a machine.

Nodes belong to no job and are large, so no copies of them are kept: only which of them have such a taint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.node_notices import NodeNotice, noticed
from rljob_operator.cluster.port import Manifest

log = logging.getLogger(__name__)

_GONE = 410
_BACKOFF = Backoff(first=0.2, last=60.0)


class NodeWatch:
    """Which nodes are about to be taken away.

    Args:
        api: lists and watches nodes.
        taints: the keys of taints that say so; empty to watch no nodes.

    Attributes:
        on_notice: called with the name of each node that gets such a taint.
    """

    def __init__(self, api: KubeApi, taints: Collection[str]) -> None:
        self._api = api
        self._taints = frozenset(taints)
        self._notices: dict[str, NodeNotice] = {}
        self.on_notice: Callable[[str], None] = lambda _: None

    @property
    def notices(self) -> Mapping[str, NodeNotice]:
        """By name, the nodes that are about to be taken away."""
        return MappingProxyType(self._notices)

    async def run(self) -> None:
        """Watch nodes until cancelled; returns at once if there is nothing to look for."""
        version, failures = "", 0
        while self._taints:
            try:
                if not version:
                    version = await self._read()
                async for event, node in self._api.watch("Node", "", "", version):
                    failures, version = 0, node["metadata"]["resourceVersion"]
                    if event == "DELETED":
                        self._notices.pop(node["metadata"]["name"], None)
                    elif event != "BOOKMARK":
                        self._see(node)
            except ApiError as error:
                failures += 1
                if error.status == _GONE:
                    version = ""
                else:
                    log.log(logging.WARNING if failures == 1 else logging.DEBUG, "watching nodes: %s", error)
                await asyncio.sleep(_BACKOFF.delay(failures))

    async def _read(self) -> str:
        """Look at all nodes; returns the resource version of the list."""
        version, names = "", set()
        async for page in self._api.pages("Node", "", ""):
            version = page.version or version
            for node in page.manifests:
                names.add(node["metadata"]["name"])
                self._see(node, is_older=True)
        for name in self._notices.keys() - names:
            del self._notices[name]
        return version

    def _see(self, node: Manifest, *, is_older: bool = False) -> None:
        name, taint = node["metadata"]["name"], noticed(node, self._taints)
        if taint is None:
            self._notices.pop(name, None)
        elif name not in self._notices:
            self._notices[name] = NodeNotice(
                taint["key"],
                datetime.now(UTC),
                is_older=is_older,
                value=taint.get("value", ""),
                effect=taint.get("effect", ""),
            )
            log.info("node %s is about to be taken away: it has the taint %s", name, taint["key"])
            self.on_notice(name)
