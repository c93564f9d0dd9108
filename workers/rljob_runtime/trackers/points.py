"""Turns lines of a job's metrics stream into the points that trackers store.

| values | from |
|---|---|
| `train/…` | a commit: rewards, and the trainer's statistics of the step |
| `evaluation/…` | an evaluation |
| `job/…` | a commit: counts of the whole job, speeds, queues |
| `rljob/sequence`, `rljob/step`, `rljob/stream` | every point |
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.metrics_history import SeenLines, kind_of
from rljob_core.ports import Message, TrackedPoint

SEQUENCE, STEP, STREAM = "rljob/sequence", "rljob/step", "rljob/stream"
"""Values that every tracker stores with a point: the fields of `TrackedPoint` with these names."""
_MARKS = 1 << 24
"""Whole numbers that a tracker with numbers of 32 bits (TensorBoard) stores exactly."""
_TRAINED = (
    "reward_mean", "reward_std", "reward_mean_trained", "reward_std_trained", "response_tokens_mean", "stats",
)  # fmt: skip
_EVALUATED = "heldout_"
_OWN = {"step", "version", "last_version", "writer"}
"""Fields of a line that are no curve of their own."""


def points(seen: SeenLines, message: Message) -> Iterator[TrackedPoint]:
    """The point of a message of the metrics stream; none if the line repeats another one, or has nothing to store.

    Args:
        seen: the lines of all messages before, to which the line is added.
        message: the message.
    """
    line = STEP_METRICS.validate_json(message.data)
    new, kind = seen.add(line), kind_of(line)
    if line.gone_back:
        yield TrackedPoint(message.sequence, line.version, "rollback")
    elif new and kind == "end":
        why = "" if line.failure is None else line.failure.detail
        yield TrackedPoint(message.sequence, line.version, kind, outcome=line.finished, message=why)
    elif new and kind != "other":
        yield TrackedPoint(message.sequence, line.version, kind, values(line))


def values(line: StepMetrics) -> dict[str, float]:
    """The numbers of a commit or an evaluation, by the names under which trackers store them."""
    fields: dict[str, Any] = STEP_METRICS.dump_python(line, mode="json")
    scores = {name: value for name, value in fields.items() if name.startswith(_EVALUATED)}
    if kind_of(line) == "evaluation":
        return dict(_numbers("evaluation", scores))
    trained = {name: fields[name] for name in _TRAINED if name in fields}
    rest = {
        name: value
        for name, value in fields.items()
        if name not in scores and name not in trained and name not in _OWN
    }
    return {
        **dict(_numbers("train", {**trained, **(trained.pop("stats", None) or {})})),
        **dict(_numbers("job", rest)),
    }


def _numbers(prefix: str, found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in found.items():
        here = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            yield from _numbers(here, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here, float(value)


def stored(point: TrackedPoint) -> dict[str, float]:
    """What a tracker stores of a point: its values, its sequence and its step."""
    found = {**point.values, SEQUENCE: float(point.sequence), STEP: float(point.step)}
    return {**found, STREAM: float(point.stream)} if point.stream else found


def stream_mark(first: Message) -> int:
    """A number that tells a metrics stream from another of the same job: a copy of a stream has the same.

    Args:
        first: its first message.
    """
    return zlib.crc32(first.data) % (_MARKS - 1) + 1
