"""What of a site's streams the other side has not taken yet, as the site's own nats-server says."""

from __future__ import annotations

import json
from dataclasses import dataclass

from nats.aio.client import Client

from rljob_operator.reconcile.stream_requests import ask

_WORK_QUEUE = "workqueue"


@dataclass(frozen=True, slots=True)
class SiteBacklog:
    """What waits.

    Attributes:
        outbox_bytes: in streams from which the hub takes: work queues, of which what was taken is deleted.
        mirror_lag: messages of the hub that mirrors and sourcing streams of the site lack.
    """

    outbox_bytes: int = 0
    mirror_lag: int = 0


async def read_backlog(client: Client) -> SiteBacklog:
    """Ask the server.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not say.
    """
    outbox, lag, offset = 0, 0, 0
    while True:
        page = await ask(client, "$JS.API.STREAM.LIST", json.dumps({"offset": offset}).encode())
        streams = page.get("streams") or []
        for info in streams:
            upstream = [info["mirror"]] if info.get("mirror") else info.get("sources") or []
            lag += sum(int(source.get("lag", 0)) for source in upstream)
            if info["config"]["retention"] == _WORK_QUEUE and not upstream:
                outbox += int(info["state"]["bytes"])
        offset += len(streams)
        if not streams or offset >= int(page.get("total", 0)):
            return SiteBacklog(outbox, lag)
