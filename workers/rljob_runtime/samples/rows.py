"""The format of samples: a Parquet file with one row for each answer.

A change of its columns raises `FORMAT`, and readers take no other one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rljob_core.messages import RewardResult
from rljob_core.trajectory import Segment, Source, Trajectory, group_of, is_evaluation, sibling_of
from rljob_runtime.samples import columnar

FORMAT = b"2"
PROMPT_BITS = 38
"""Bits of a group's number (`index.group_number`) that are its prompt's; the others hold 16 million versions."""
FORMAT_KEY, JOB_KEY = b"rljob.samples", b"rljob.job"

_TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("evaluated", pa.int32()),  # version that an evaluation is of; -1: training
        ("prompt_index", pa.int64()),
        ("sibling", pa.int32()),
        ("attempt", pa.int64()),  # of an evaluation, it begins with the coordinator's epoch
        ("sample", pa.string()),  # sampled or greedy
        ("version_min", pa.int32()),
        ("version_max", pa.int32()),
        ("reward", pa.float64()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("error", pa.string()),  # why there is no score; empty if there is one
        ("finish", pa.string()),
        ("engine", pa.string()),
        ("worker", pa.string()),
        ("received", _TIME),
        ("scored", _TIME),
        ("payload_digest", pa.string()),
        ("prompt", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("expected", pa.string()),  # what the item has as its answer; empty if it has none
        ("response", pa.string()),
        # One value for each token behind the prompt; of an environment's tokens the version is -1.
        ("tokens", pa.list_(pa.int32())),
        ("texts", pa.list_(pa.string())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
    ]
)
_TYPES = [(field.name, field.type) for field in SCHEMA]
_ARRAYS = ("tokens", "loss_mask", "logprobs", "versions")  # of a segment
#: Bytes of a row group, which is what is read of a file at least.
_ROW_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """An answer, and what the reward worker made of it.

    Attributes:
        received: when the worker received it, in seconds since 1970.
        scored: when its score was published.
        expected: what the item has as its answer, for people.
    """

    trajectory: Trajectory
    result: RewardResult
    received: float
    scored: float
    expected: str = ""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes, and its row."""
        return 2048 + 32 * sum(len(segment.tokens) for segment in self.trajectory.segments)

    def detached(self) -> ScoredAnswer:
        """A copy with arrays of its own: those of a received trajectory are parts of the whole message."""
        segments = tuple(
            dataclasses.replace(segment, **{name: getattr(segment, name).copy() for name in _ARRAYS})
            for segment in self.trajectory.segments
        )
        return dataclasses.replace(self, trajectory=dataclasses.replace(self.trajectory, segments=segments))


class TokenTexts:
    """What tokens mean as text.

    Args:
        decode: the text of token ids, without special tokens.
        name: what to show for a token that has no text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], name: Callable[[int], str]) -> None:
        self._decode = decode
        self._name = name
        self.one = lru_cache(maxsize=1 << 18)(self._one)

    def all(self, tokens: NDArray[np.int32]) -> str:
        """The text of tokens; empty if one of them is outside any range, for which the answer has an error."""
        try:
            return _encodable(self._decode(tokens.tolist()))
        except OverflowError:
            return ""

    def _one(self, token: int) -> str:
        """What a token adds behind itself: a decoder may drop the space that begins a text."""
        try:
            alone = self._decode([token])
            return _encodable(self._decode([token, token])[len(alone) :] or self._name(token))
        except OverflowError:
            return f"<{token}>"


def table_of(answers: Sequence[ScoredAnswer], texts: TokenTexts, *, worker: str) -> pa.Table:
    """The answers as rows.

    Args:
        answers: what was scored.
        texts: decodes tokens.
        worker: the reward worker's name.

    Raises:
        ValueError: an answer is none that a job can have.
        OverflowError: one of its numbers is too large.
    """
    rows = [_row(answer, texts, worker) for answer in answers]
    columns = [columnar.column(kind, [row[name] for row in rows]) for name, kind in _TYPES]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _row(answer: ScoredAnswer, texts: TokenTexts, worker: str) -> dict[str, Any]:
    trajectory, result = answer.trajectory, answer.result
    group = group_of(trajectory.id)
    first = next((i for i, s in enumerate(trajectory.segments) if s.source is not Source.PROMPT), None)
    prompt = trajectory.segments[:first]
    behind = [] if first is None else trajectory.segments[first:]
    asked = _joined(prompt, "tokens", np.int32)
    tokens = _joined(behind, "tokens", np.int32)
    made = _joined([s for s in behind if s.source is Source.MODEL], "tokens", np.int32)
    return {
        "group": group,
        "evaluated": evaluated_version(group),
        "prompt_index": prompt_index(group),
        "sibling": sibling_of(trajectory.id),
        "attempt": trajectory.attempt,
        "sample": trajectory.sample,
        "version_min": trajectory.span.min,
        "version_max": trajectory.span.max,
        "reward": result.reward,
        "parts": result.parts,
        "error": _encodable(result.error),
        "finish": str(trajectory.finish),
        "engine": trajectory.engine,
        "worker": worker,
        "received": round(answer.received * 1000),
        "scored": round(answer.scored * 1000),
        "payload_digest": result.payload_digest,
        "prompt": texts.all(asked),
        "prompt_tokens": len(asked),
        "expected": _encodable(answer.expected),
        "response": texts.all(made),
        "tokens": tokens,
        "texts": [texts.one(token) for token in tokens.tolist()],
        "logprobs": _joined(behind, "logprobs", np.float32),
        "versions": _joined(behind, "versions", np.int32),
    }


def evaluated_version(group: str) -> int:
    """The version that a group of an evaluation is of; -1 for a training group."""
    return int(group[1:].partition("-")[0]) if is_evaluation(group) else -1


def prompt_index(group: str) -> int:
    """The index of the prompt that a group answers.

    Raises:
        ValueError: it is larger than that of any job.
    """
    prompt = int(group[1:].partition("-")[2] if is_evaluation(group) else group[1:])
    if not 0 <= prompt < 1 << PROMPT_BITS:
        raise ValueError(f"no job has a prompt {prompt}")
    return prompt


def group_name(evaluated: int, prompt: int) -> str:
    """The id of the group that answers a prompt."""
    return f"g{prompt}" if evaluated < 0 else f"e{evaluated}-{prompt}"


def as_file(table: pa.Table, *, job: str) -> memoryview:
    """A Parquet file.

    Args:
        table: the rows.
        job: UID of the job, which the file names.
    """
    content = pa.BufferOutputStream()
    rows = max(1, _ROW_GROUP * table.num_rows // max(1, table.nbytes))
    metadata = {FORMAT_KEY: FORMAT, JOB_KEY: job.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), content, compression="zstd", row_group_size=rows)
    return memoryview(content.getvalue())


def _joined(segments: Sequence[Segment], field: str, kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *(getattr(segment, field) for segment in segments)])


def _encodable(text: str) -> str:
    """The text, with a question mark for what UTF-8 has no bytes for."""
    return text.encode(errors="replace").decode()
