"""The ledger of an evidence builder as a stream."""

from __future__ import annotations

import uuid

from evidence_builder import EvidenceBuilder

from rljob_core.ports import Channel, MessageStore
from rljob_core.records import EpochClaimed, RecordBatch, encode_batch
from rljob_runtime.messaging import ledger


async def append(store: MessageStore, evidence_builder: EvidenceBuilder) -> None:
    """The ledger's messages, each naming the one before it; a snapshot in two parts."""
    before = ""

    async def message(suffix: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        nonlocal before
        named = {"Rljob-After": before, **(headers or {})}
        before = uuid.uuid4().hex
        return await store.publish(Channel.LEDGER, suffix, data, headers=named, message_id=before)

    for entry in evidence_builder.ledger:
        if entry.snapshot is not None:
            part = await message(ledger.PART, entry.snapshot[:100])
            await message(ledger.SNAPSHOT, entry.snapshot[100:], {"Rljob-Parts": str(part)})
            continue
        claims = any(isinstance(record, EpochClaimed) for record in entry.records)
        data = encode_batch(RecordBatch(entry.writer, entry.records))
        if entry.counts:
            await message(ledger.CLAIM if claims else ledger.RECORDS, data)
        else:
            await message(ledger.RECORDS, data, {"Rljob-After": "lost"})
