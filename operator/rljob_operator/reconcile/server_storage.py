"""What the NATS servers say of the storage of accounts: one request for all jobs, to the system account."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client

from rljob_operator.decisions.stream_storage import Room
from rljob_operator.reconcile.stream_requests import TIMEOUT_SECONDS

_SUBJECT = "$SYS.REQ.SERVER.PING.JSZ"
_UNLIMITED = 1 << 63
"""What a server reports of an account without a limit is not less."""
_SILENCE_SECONDS = 0.5
"""After which no other server answers."""
_ACCOUNTS = 1 << 20


class ServerStorage:
    """The storage of all accounts.

    Attributes:
        servers: how many there are, those that are away among them.
        capacity: bytes that the smallest server may store.
        free: by how many bytes the limits of accounts could grow, all replicas together. Servers of a cluster set
            nothing aside: what accounts may take is compared with what the smallest server has, times their number.
    """

    def __init__(self, answers: list[Mapping[str, Any]]) -> None:
        self._used: dict[str, int] = defaultdict(int)
        self._allowed: dict[str, int] = {}
        self._streams: dict[str, dict[str, int]] = defaultdict(dict)
        for answer in answers:
            for account in answer.get("account_details") or ():
                # A server reports what it has itself; an account's limit is for all servers together.
                self._used[account["id"]] += account["storage"]
                if account["reserved_storage"] < _UNLIMITED:
                    self._allowed[account["id"]] = account["reserved_storage"]
                streams = self._streams[account["id"]]
                for stream in account.get("stream_detail") or ():
                    held = int(stream["state"]["bytes"])
                    streams[stream["name"]] = max(streams.get(stream["name"], 0), held)
        self.capacity = min(int(answer["config"]["max_storage"]) for answer in answers)
        self.servers = max(
            len(answers), *(answer.get("meta_cluster", {}).get("cluster_size", 1) for answer in answers)
        )
        set_aside = sum(self._allowed.values())
        if self.servers == 1:
            # The server compares its limit with both: what streams reserve, and what accounts do.
            set_aside = max(int(answers[0]["reserved_storage"]), set_aside)
        self.free = self.servers * self.capacity - set_aside

    def room(self, account: str) -> Room:
        """What an account has."""
        return Room(self._allowed.get(account), self._used.get(account, 0), self.free, self.capacity)

    def has(self, account: str) -> bool:
        """Whether a server has streams of an account, or the account is in use."""
        return account in self._used

    def streams(self, account: str) -> dict[str, int]:
        """Bytes of each stream of an account, of the replica that has the most."""
        return self._streams.get(account, {})


async def server_storage(system: Client) -> ServerStorage:
    """Ask all servers.

    Args:
        system: a user of the system account.

    Raises:
        TimeoutError: none answers.
        nats.errors.Error: they cannot be asked.
    """
    inbox = system.new_inbox()
    answers = asyncio.Queue[Mapping[str, Any]]()
    expected = 1

    async def take(message: Any) -> None:
        answers.put_nowait(json.loads(message.data)["data"])

    subscription = await system.subscribe(inbox, cb=take)
    try:
        body = json.dumps({"accounts": True, "streams": True, "limit": _ACCOUNTS}).encode()
        await system.publish(_SUBJECT, body, reply=inbox)
        found = [await asyncio.wait_for(answers.get(), TIMEOUT_SECONDS)]
        expected = found[0].get("meta_cluster", {}).get("cluster_size", 1)
        while len(found) < expected:
            try:
                found.append(await asyncio.wait_for(answers.get(), _SILENCE_SECONDS))
            except TimeoutError:  # a server is away
                break
    finally:
        await subscription.unsubscribe()
    return ServerStorage(found)
