"""A site's copy of a job's weights: where a new one begins, and whether one that exists has what it should.

While both servers live, the copy repeats what the hub's stream says: versions, and messages that delete versions. What
a server has lost with its machine is found when the site is joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from pydantic import ValidationError

from rljob_core.messages import VERSION_ANNOUNCED
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames
from rljob_core.weight_messages import MANIFEST, begins, kept_keys, lacking_at_copy, only_at_copy
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import count_messages, get_from_leader

_TOGETHER = 32
"""Requests at once."""


async def first_weights(names: StreamNames, hub: Connection) -> int:
    """The sequence with which the anchor of the newest announced version begins; 1 if that is not known.

    Args:
        names: of the job's streams.
        hub: connection to the hub's server.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    announced = await _newest(hub, names, Channel.VERSIONS, ">")
    if announced is None:
        return 1
    try:
        key = VERSION_ANNOUNCED.validate_json(announced[0].data).key
    except ValidationError:  # engines that read it report it
        return 1
    manifest = None if key is None else await _newest(hub, names, Channel.WEIGHTS, f"{MANIFEST}.{key}")
    if manifest is None:
        return 1
    stored, sequence = manifest
    return begins(stored.headers or {}, own=sequence) or 1


async def inspect_mirror(
    names: StreamNames, hub: Connection, site: Connection, *, first: int, confirmed: int
) -> bool:
    """Compare a site's copy of the weights with the hub's, and delete what the hub has no more.

    Args:
        names: of the job's streams.
        hub: connection to the hub's server.
        site: connection to the site's server.
        first: sequence of the first message that the copy needs.
        confirmed: sequence of the last message that the hub knows the copy to have had.

    Returns whether the copy has all that it should have.

    Raises:
        StoreUnavailable: a server does not answer.
    """
    stream = names.stream(Channel.WEIGHTS)
    info = await site.retried(partial(site.call, f"STREAM.INFO.{stream}", {}))
    copy = await _counts(site, names)
    original = await _counts(hub, names)
    sequences = await _manifests(hub, names, original)
    last = max(int(info["state"]["last_seq"]), confirmed)
    if lacking_at_copy(original, copy, sequences, first=first, last=last):
        return False
    for suffix in only_at_copy(original, copy):
        which = {"filter": names.subject_of(Channel.WEIGHTS, suffix)}
        await site.retried(partial(site.call, f"STREAM.PURGE.{stream}", which))
    return True


async def _counts(connection: Connection, names: StreamNames) -> dict[str, int]:
    """Number of messages of each suffix of the weights."""
    found = await count_messages(
        connection, names.stream(Channel.WEIGHTS), names.subject_of(Channel.WEIGHTS, ">")
    )
    return {names.suffix_of(Channel.WEIGHTS, subject): count for subject, count in found.items()}


async def _manifests(hub: Connection, names: StreamNames, original: Mapping[str, int]) -> dict[str, int]:
    """Sequences of the manifests of all versions whose tensors are stored, by key."""
    keys, found = kept_keys(original), {}
    for place in range(0, len(keys), _TOGETHER):
        some = keys[place : place + _TOGETHER]
        asked = (_newest(hub, names, Channel.WEIGHTS, f"{MANIFEST}.{key}") for key in some)
        for key, stored in zip(some, await asyncio.gather(*asked), strict=True):
            if stored is not None:
                found[key] = stored[1]
    return found


async def _newest(
    connection: Connection, names: StreamNames, channel: Channel, suffix: str
) -> tuple[Received, int] | None:
    """The newest message of a suffix, and its sequence."""
    which = {"last_by_subj": names.subject_of(channel, suffix)}
    return await connection.retried(partial(get_from_leader, connection, names.stream(channel), which))
