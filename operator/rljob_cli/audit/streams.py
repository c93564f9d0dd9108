"""Reads a job's streams for the audit: ledger, rewards and payloads.

A server may lose the end of a stream, even while the audit reads it; new messages then reuse the lost sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from rljob_cli.audit.evidence import LedgerMessage, PayloadLeft
from rljob_core.errors import CorruptLedger, CorruptPayload, StreamCut
from rljob_core.messages import (
    MARK,
    REWARD_BATCH,
    STEP_METRICS,
    VERSION_ANNOUNCED,
    RewardResult,
    StepMetrics,
    VersionAnnounced,
)
from rljob_core.ports import MESSAGE_ID, Channel, Message, MessageStore
from rljob_core.records import RecordBatch, SpecInForce, VersionsRevoked
from rljob_core.spec import RLJobSpec
from rljob_runtime.messaging import ledger
from rljob_runtime.messaging.ledger import CHAIN_DIGEST, Chain, chain_digest
from rljob_runtime.messaging.payload_index import SUMMARY_HEADER
from rljob_runtime.messaging.reward_results import result_digest
from rljob_runtime.messaging.summaries import PayloadSummary, decode_summaries
from rljob_runtime.messaging.trajectories import Location, TrajectoryStore

T = TypeVar("T")
_SILENCE_SECONDS = 2.0
_POLL_SECONDS = 0.2
_READINGS = 3
_PAYLOADS_AT_ONCE = 64


async def absent_streams(store: MessageStore, patience: float) -> list[Channel]:
    """The channels whose streams the server does not have, nor gets within `patience` seconds."""
    end = asyncio.get_running_loop().time() + patience
    while True:
        absent = [channel for channel in Channel if not await store.exists(channel)]
        if not absent or asyncio.get_running_loop().time() >= end:
            return absent
        await asyncio.sleep(_POLL_SECONDS)


async def stored(store: MessageStore, channel: Channel, *, headers_only: bool = False) -> list[Message]:
    """Read all messages that a stream holds now, without those that a running job deletes meanwhile.

    Raises:
        StreamCut: the server lost messages during each of several attempts to read the stream.
    """
    for _ in range(_READINGS):
        try:
            return await _read(store, channel, headers_only=headers_only)
        except StreamCut as error:
            cut = error
    raise cut


async def _read(store: MessageStore, channel: Channel, *, headers_only: bool) -> list[Message]:
    held = (await store.depths([channel]))[channel.value]
    last = await store.last_sequence(channel)
    found: list[Message] = []
    if not held:
        return found
    batches = store.read(channel, headers_only=headers_only)
    with suppress(TimeoutError):
        while len(found) < held and (not found or found[-1].sequence < last):
            async with asyncio.timeout(_SILENCE_SECONDS):
                found += await anext(batches)
    await batches.aclose()  # type: ignore[attr-defined]
    return found


def ledger_messages(messages: Sequence[Message], unreadable: list[str]) -> Iterator[LedgerMessage]:
    """Decode the ledger's messages and find out which are in the chain; add what does not decode to `unreadable`.

    What follows a message that does not decode does not count, until the next claim: it may depend on what is lost.
    """
    chain, broken = Chain(), False
    before = ""
    data = {message.sequence: message.data for message in messages}
    for message in messages:
        broken = broken and message.suffix != ledger.CLAIM
        counts = chain.admits(message) and not broken
        batch, snapshot = None, None
        try:
            match message.suffix:
                case ledger.CLAIM | ledger.RECORDS:
                    batch = _with_valid_specs(ledger.read_batch(message), message.sequence)
                case ledger.SNAPSHOT:
                    parts = (data[sequence] for sequence in ledger.parts_before(message))
                    snapshot = b"".join([*parts, message.data])
                case ledger.PART:
                    pass
                case _:
                    what = (
                        f"message {message.sequence} of the ledger is of the unknown kind {message.suffix!r}"
                    )
                    unreadable.append(f"{what}: it was written by another release of rljob")
        except CorruptLedger as error:
            if counts:
                unreadable.append(str(error))
                broken = True
        except (LookupError, ValueError) as error:
            unreadable.append(
                f"the snapshot in message {message.sequence} of the ledger lacks a part: {error}"
            )
        identity, digest = message.headers.get(MESSAGE_ID, ""), message.headers.get(CHAIN_DIGEST, "")
        expected = chain_digest(before, identity, message.suffix, message.data)
        before = digest
        yield LedgerMessage(message.sequence, batch, snapshot, counts, digest, expected)


def _with_valid_specs(batch: RecordBatch, sequence: int) -> RecordBatch:
    """The batch.

    Raises:
        CorruptLedger: a spec in it is none.
    """
    for record in batch.records:
        if isinstance(record, SpecInForce):
            try:
                RLJobSpec.model_validate(record.spec)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(map(str, ("spec", *first["loc"])))
                text = f"message {sequence} of the ledger has no valid spec: {field}: {first['msg']}"
                raise CorruptLedger(text) from error
    return batch


def _decoded(
    adapter: TypeAdapter[T], named: Iterable[tuple[str, bytes]], unreadable: list[str]
) -> Iterator[T]:
    """Yield what decodes; add the names of what does not to `unreadable`."""
    for name, data in named:
        try:
            yield adapter.validate_json(data)
        except ValidationError as error:
            unreadable.append(f"{name} does not decode: {first_message(error)}")


def first_message(error: ValidationError) -> str:
    """What is wrong first."""
    return error.errors(include_url=False)[0]["msg"]


def reward_results(messages: Sequence[Message], unreadable: list[str]) -> Iterator[RewardResult]:
    """Yield all results in the reward stream; add what does not decode, or was altered, to `unreadable`."""
    named = ((f"reward message {m.sequence}", m.data) for m in messages if m.suffix != MARK)
    for batch in _decoded(REWARD_BATCH, named, unreadable):
        for result in batch.results:
            if result.digest != result_digest(result):
                unreadable.append(f"the stored score of {result.trajectory} does not match its digest")
            yield result


def announcements(messages: Sequence[Message], unreadable: list[str]) -> tuple[VersionAnnounced, ...]:
    """Decode what was announced to the engines; add what does not decode to `unreadable`."""
    named = ((f"announcement {message.sequence}", message.data) for message in messages)
    return tuple(_decoded(VERSION_ANNOUNCED, named, unreadable))


def metrics_lines(
    messages: Sequence[bytes], ledger: Iterable[LedgerMessage], unreadable: list[str]
) -> tuple[StepMetrics, ...]:
    """Decode metrics lines, without those that the user has gone back from, by the ledger.

    A rollback whose record is lost takes no line away: the ledger then still has what the lines tell.

    Args:
        messages: the lines.
        ledger: its messages.
        unreadable: gets what does not decode, and what no coordinator publishes.
    """
    written = [
        (one.batch.writer.number, r) for one in ledger if one.batch and one.counts for r in one.batch.records
    ]
    rollbacks = {
        (writer, record.version) for writer, record in written if isinstance(record, VersionsRevoked)
    }
    at_work = {writer for writer, record in written if isinstance(record, SpecInForce)}
    kept: list[StepMetrics] = []
    named = ((f"line {number} of the metrics", data) for number, data in enumerate(messages, start=1))
    for line in _decoded(STEP_METRICS, named, unreadable):
        if wrong := _unpublished(line, at_work):
            unreadable.append(f"a line of the metrics, of version {line.version}, {wrong}: it was altered")
        elif (line.writer, line.version) in rollbacks and line.gone_back:
            kept = [one for one in kept if one.version <= line.version and not one.finished]
        elif not line.gone_back:
            kept.append(line)
    return tuple(kept)


def _unpublished(line: StepMetrics, at_work: Container[int]) -> str:
    """Why no coordinator has published such a line; "" if one may have. `at_work`: writer epochs of coordinators."""
    if not line.writer:
        return "names no writer epoch"
    if line.gone_back and line.writer in at_work:
        return (
            f"tells of a rollback by the writer epoch {line.writer}, which the ledger has as a coordinator's"
        )
    if line.step != line.version:
        return f"is of step {line.step}"
    if line.stats is not None and line.reward_mean is None:
        return "has figures of a step, but no mean reward"
    if (line.heldout_greedy is not None or line.heldout_answers) and not line.is_evaluation:
        return "has figures of an evaluation, but no sampled reward"
    return ""


async def payloads_left(store: MessageStore, unreadable: list[str]) -> list[PayloadLeft]:
    """Read the payloads that are left in the trajectory stream, and verify each against its digest."""
    trajectories = TrajectoryStore(store)
    summaries = []
    for message in await stored(store, Channel.TRAJECTORIES, headers_only=True):
        if SUMMARY_HEADER not in message.headers:
            continue  # a chunk: the message that completes it has the summary
        try:
            found = decode_summaries(message.headers[SUMMARY_HEADER])
        except CorruptPayload as error:
            unreadable.append(f"payload message {message.sequence} has no readable header: {error}")
            continue
        summaries += [(s, Location(message.sequence, index, s.digest)) for index, s in enumerate(found)]
    left = []
    for first in range(0, len(summaries), _PAYLOADS_AT_ONCE):
        part = summaries[first : first + _PAYLOADS_AT_ONCE]
        whole = await trajectories.get([location for _, location in part])
        # A payload that was deleted since its header was read is no damage, nor is another message in its place.
        sequences = [location.sequence for _, location in part]
        present = dict(zip(sequences, await store.get(Channel.TRAJECTORIES, sequences), strict=True))
        left += [
            PayloadLeft(
                s.trajectory,
                s.attempt,
                s.digest,
                s.span,
                at.sequence,
                at.index,
                intact=trajectory is not None,
                prompt=s.prompt,
            )
            for (s, at), trajectory in zip(part, whole, strict=True)
            if trajectory is not None or _lists(present[at.sequence], s)
        ]
    return left


def _lists(message: Message | None, summary: PayloadSummary) -> bool:
    """Return whether the message is the one that the summary was read from."""
    if message is None or SUMMARY_HEADER not in message.headers:
        return False
    with suppress(CorruptPayload):
        return summary in decode_summaries(message.headers[SUMMARY_HEADER])
    return False
