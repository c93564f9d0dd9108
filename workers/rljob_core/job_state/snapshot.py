"""A job's state as bytes, so that a coordinator need not read its ledger from the beginning.

Field names are a file format: ledgers and decision logs hold snapshots.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from rljob_core.failures import Failure
from rljob_core.job_state import Commit, GroupState, JobState, Untrained
from rljob_core.messages.limits import LARGEST_SNAPSHOT
from rljob_core.records import (
    CheckpointSaved,
    Evaluated,
    JobFinished,
    MicroBatchAssigned,
    PipelineSet,
    TrainerAttempt,
    Writer,
)
from rljob_core.staleness import Buffer, StalenessBuffers


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The fields of a `JobState`, without the indices that `JobState.index` rebuilds."""

    job: str
    writer: Writer
    version: int
    next_step: int
    pipeline: PipelineSet | None
    buffers: tuple[Buffer, ...]
    groups: tuple[GroupState, ...]
    next_prompt: int
    restored: tuple[int, ...]
    commit: Commit
    checkpoint: CheckpointSaved | None
    trainer: TrainerAttempt | None
    micro_batches: tuple[MicroBatchAssigned, ...]
    evaluated: dict[int, Evaluated]
    finished: JobFinished | None
    replaced: dict[str, int]
    counts: dict[str, int]
    aborted: dict[str, int]
    attempts_failed: dict[str, int]
    lineage: dict[int, str]
    given_up: tuple[Failure, ...]
    untrained: tuple[Untrained, ...]
    format: Literal[3] = 3


_SNAPSHOT: TypeAdapter[_Snapshot] = TypeAdapter(_Snapshot)


def dump(state: JobState) -> bytes:
    """The state as compressed JSON; equal states with equal histories give equal bytes."""
    buffers = state.buffers
    snapshot = _Snapshot(
        job=state.job,
        writer=state.writer,
        version=buffers.version,
        next_step=buffers.next_step,
        pipeline=state.pipeline,
        buffers=tuple(buffers.buffers.values()),
        groups=tuple(state.groups.values()),
        next_prompt=state.next_prompt,
        restored=tuple(sorted(state.restored)),
        commit=state.commit,
        checkpoint=state.checkpoint,
        trainer=state.trainer,
        micro_batches=tuple(state.micro_batches),
        evaluated=state.evaluated,
        finished=state.finished,
        replaced=dict(state.replaced),
        counts=dict(state.counts),
        aborted=dict(state.aborted),
        attempts_failed=dict(state.attempts_failed),
        lineage=state.lineage,
        given_up=tuple(state.given_up),
        untrained=tuple(state.untrained),
    )
    return zlib.compress(_SNAPSHOT.dump_json(snapshot), level=1)


def load(data: bytes) -> JobState:
    """The state from which `dump` made these bytes.

    Raises:
        ValueError: the bytes are no snapshot of this format.
    """
    snapshot = _SNAPSHOT.validate_json(_decompressed(data))
    state = JobState()
    state.job, state.writer = snapshot.job, snapshot.writer
    state.buffers = StalenessBuffers.of(snapshot.version, snapshot.next_step, snapshot.buffers)
    state.pipeline = snapshot.pipeline
    state.groups = {group.id: group for group in snapshot.groups}
    state.next_prompt = snapshot.next_prompt
    state.restored = set(snapshot.restored)
    state.commit, state.checkpoint, state.trainer = snapshot.commit, snapshot.checkpoint, snapshot.trainer
    state.micro_batches = list(snapshot.micro_batches)
    state.lineage = snapshot.lineage
    state.given_up, state.untrained = list(snapshot.given_up), list(snapshot.untrained)
    state.evaluated, state.finished = snapshot.evaluated, snapshot.finished
    for counter, counts in (
        (state.replaced, snapshot.replaced),
        (state.counts, snapshot.counts),
        (state.aborted, snapshot.aborted),
        (state.attempts_failed, snapshot.attempts_failed),
    ):
        counter.update(counts)
    state.index()
    return state


def differences(one: bytes, other: bytes) -> list[str]:
    """Names of the fields in which two snapshots differ.

    Raises:
        ValueError: one of them is no snapshot.
    """
    ours, theirs = (_fields(data) for data in (one, other))
    return [name for name in ours | theirs if ours.get(name) != theirs.get(name)]


def _fields(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = _SNAPSHOT.dump_python(_SNAPSHOT.validate_json(_decompressed(data)), mode="json")
    return fields


def _decompressed(data: bytes) -> bytes:
    """The JSON in a snapshot.

    Raises:
        ValueError: the bytes do not decompress, end early, or decompress to more than `LARGEST_SNAPSHOT`.
    """
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, LARGEST_SNAPSHOT)
    except zlib.error as error:
        raise ValueError(f"a snapshot does not decompress: {error}") from error
    if stream.unconsumed_tail:
        raise ValueError(f"a snapshot has more than {LARGEST_SNAPSHOT:,} bytes")
    if not stream.eof:
        raise ValueError("a snapshot does not decompress: it ends early")
    return text
