"""Requests by which the operator gives a nats-server the accounts that it makes."""

from __future__ import annotations

import time

from nats.aio.client import Client

from rljob_operator.reconcile.stream_requests import ask


async def give_account(system: Client, token: str) -> None:
    """Let the server have an account, or change it.

    Args:
        system: a user of the system account.
        token: the account's; one with a lower revision than the one that the server has changes nothing.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not take it.
    """
    await ask(system, "$SYS.REQ.CLAIMS.UPDATE", token.encode())


def revision_by_time() -> int:
    """A revision: later tokens have a greater one, also those of the next process."""
    return int(time.time())
