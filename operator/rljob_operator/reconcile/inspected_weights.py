"""Requests that find out whether a site's copy of the weights lacks what it had (`decisions.weight_inspections`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection

from nats.aio.client import Client

from rljob_core.ports import Channel
from rljob_core.site_streams import SiteStreams
from rljob_core.stream_names import StreamNames
from rljob_core.weight_messages import MANIFEST, kept_keys
from rljob_operator.decisions.joined_streams import CopyId, CopyInspection, StreamsReport
from rljob_operator.decisions.weight_inspections import inspection, is_over, lost_at_copy
from rljob_operator.reconcile.stream_requests import ask, consumer_state, newest_sequence

_TOGETHER = 32
"""Requests at once."""


async def count_weights(client: Client, names: StreamNames) -> dict[str, int]:
    """Number of messages of each suffix of the weights, at the server that a client is connected to.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: it does not say.
    """
    found: dict[str, int] = {}
    subject, total = names.subject_of(Channel.WEIGHTS, ">"), 1
    while len(found) < total:
        body = json.dumps({"subjects_filter": subject, "offset": len(found)}).encode()
        page = await ask(client, f"$JS.API.STREAM.INFO.{names.stream(Channel.WEIGHTS)}", body)
        counts: dict[str, int] = page["state"].get("subjects") or {}
        total = int(page.get("total", 0)) if counts else 0
        found |= counts
    return {names.suffix_of(Channel.WEIGHTS, subject): count for subject, count in found.items()}


async def inspect_copy(
    client: Client,
    streams: SiteStreams,
    report: StreamsReport | None,
    before: CopyInspection | None,
    *,
    lost: Collection[CopyId],
) -> tuple[CopyInspection | None, list[str]]:
    """What to ask of a site's copy of the weights, and the versions that it has lost, by its last answer.

    Args:
        client: at the hub's server.
        streams: of the job.
        report: what the site has said.
        before: what it was asked last.
        lost: copies that are known to be made again.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not say.
    """
    names = streams.names
    stream = names.stream(Channel.WEIGHTS)
    copy = "" if report is None else report.copies.get(stream, "")
    if report is None or not report.server or not copy or not streams.weights:
        return None, []
    asked = before if before is not None and before.server == report.server else None
    if asked is not None:
        if not asked.copy_id:
            return asked, []
        if asked.copy_id != copy:  # it was made again
            return is_over(asked), []
        if report.inspected != asked or copy in lost:
            return asked, []
        original, manifests = await _stored(client, names)
        if holes := lost_at_copy(asked, report.versions, original, manifests):
            return asked, holes
        if not asked.awaited:
            return is_over(asked), []
    (consumer,) = (found for found in streams.hub_consumers() if found.stream == stream)
    state = await consumer_state(client, consumer)
    if state is None or state.copy_id != copy or not state.confirmed:
        return asked, []
    original, manifests = await _stored(client, names)
    return inspection(
        server=report.server,
        copy_id=copy,
        confirmed=state.confirmed,
        original=original,
        manifests=manifests,
        before=asked,
    ), []


async def _stored(client: Client, names: StreamNames) -> tuple[dict[str, int], dict[str, int]]:
    """Number of messages of each suffix, and the sequences of the manifests of versions with tensors, by key."""
    original = await count_weights(client, names)
    keys, manifests = kept_keys(original), dict[str, int]()
    for place in range(0, len(keys), _TOGETHER):
        some = keys[place : place + _TOGETHER]
        subjects = (names.subject_of(Channel.WEIGHTS, f"{MANIFEST}.{key}") for key in some)
        asked = (newest_sequence(client, names.stream(Channel.WEIGHTS), subject) for subject in subjects)
        found = zip(some, await asyncio.gather(*asked), strict=True)
        manifests |= {key: sequence for key, sequence in found if sequence is not None}
    return original, manifests
