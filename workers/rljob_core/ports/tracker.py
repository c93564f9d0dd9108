"""`Tracker`: the interface to an experiment tracker, and what it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The job that a tracker follows.

    Attributes:
        uid: of the job; a tracker continues the run that it has of this uid.
        name, namespace: of the job.
        spec: the job's spec, with the field names of the API.
        revision: git revision of the code that runs; empty if it is unknown.
        folder: for files that the tracker writes; empty if there is none that lasts, so that options must name one.
    """

    uid: str
    name: str
    namespace: str
    spec: Mapping[str, Any]
    revision: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class TrackedPoint:
    """One line of the job's metrics, as a tracker stores it.

    Attributes:
        sequence: of the line in the job's metrics stream. It grows from point to point, and is the same whenever the
            line is read again.
        step: the version of the weights: x of all curves. It is smaller than before where an evaluation ends later
            than the steps after it, or the user has gone back.
        kind: a commit, an evaluation, or the end; or the user has gone back to `step`.
        values: numbers by name, such as `train/loss` or `evaluation/heldout_sampled`.
        outcome: of the job, `Succeeded` or `Failed`, if this is its end; else empty.
        message: why the job failed; else empty.
        stream: a whole number below 2^24 that names the metrics stream; 0 if it is not known. A job that was resumed
            without its streams has another one, whose sequences begin again.
        prompts: of an evaluation, how many it asked.
    """

    sequence: int
    step: int
    kind: Literal["commit", "evaluation", "end", "rollback"]
    values: Mapping[str, float] = field(default_factory=dict)
    outcome: str = ""
    message: str = ""
    stream: int = 0
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Answers of the model, for people to read; a tracker may get some of an evaluation, or of training, or none.

    Attributes:
        step: the version that was evaluated, or that was the newest when these answers were the newest.
        kind: of an evaluation, or of training.
        columns: names.
        rows: of each answer one, with a text or a number for each column; None for a number that there is not.
    """

    step: int
    kind: Literal["evaluation", "training"]
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]


class SampleTracker(Protocol):
    """What a tracker that stores samples has, too. Called in the same thread as its other methods."""

    def log_samples(self, table: SampleTable) -> None:
        """Store a table; it comes after the metrics of its step. After a crash it does not come again."""


class StreamTracker(Protocol):
    """What a tracker has, too, that tells which stream its points are of."""

    def stream(self) -> int:
        """`TrackedPoint.stream` of the newest point; 0 if it has none. Called once, after `position`."""


class Tracker(Protocol):
    """A run in an experiment tracker, opened for one job. All methods are called in one thread, one at a time.

    They may block, for as long as `rljob_runtime.roles.tracker` waits for them, and raise anything: the tracker's
    process then starts again, while the job goes on.
    """

    def position(self) -> int:
        """The greatest `sequence` that the run has; 0 if it has none. Called once, before `log`.

        The run itself must say so, not a file beside it: after a crash at any moment this is what keeps a point from
        being stored twice or not at all.
        """

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Store points, of which each has a greater `sequence` than all before.

        A point may be lost in a crash after this call if all points after it are lost, too: they are sent again.
        """

    def close(self, outcome: str) -> None:
        """Store what was logged, and end the run as `Succeeded` or `Failed`; or empty: it may be continued."""
