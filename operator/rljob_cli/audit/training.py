"""The training of a job by its ledger: pipeline settings, buffers, trainer gangs, micro-batches and commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rljob_cli.audit.causes import Causes
from rljob_cli.audit.evidence import Violation
from rljob_cli.audit.groups import Plan
from rljob_cli.audit.ledger_items import Committed, Consumed, Member
from rljob_core.records import BufferOpened, MicroBatchAssigned, PipelineSet, StepCommitted, TrainerAttempt
from rljob_core.trajectory import group_of


class Pipelines:
    """The pipeline settings in the ledger, in order, and the buffers that were opened against them.

    Attributes:
        settings: all `PipelineSet` records; the first has the settings that the job started with.
        broken: buffers that were not opened under the newest settings, or were opened too early for their bound.
    """

    def __init__(self) -> None:
        self.settings: list[PipelineSet] = []
        self.broken: list[Violation] = []

    def change(self, record: PipelineSet, opened: Iterable[int]) -> None:
        """Add new settings; they must apply from the next buffer on: to no open one, and without a gap.

        Args:
            record: the new settings.
            opened: steps whose buffer was opened, or whose commit was restored after the ledger had lost the buffer.
        """
        following = max(opened, default=-1) + 1
        if record.step != following:
            text = f"was to bind buffers from step {record.step} on, but the next to open was that of {following}"
            self.broken.append(Violation((f"step {record.step}",), text))
        self.settings.append(record)

    def open(self, record: BufferOpened, *, committed: int) -> None:
        """Check a buffer that is opened when `committed` steps are committed."""
        name = (f"step {record.step}",)
        if self.settings:
            newest = self.settings[-1]
            if (record.mode, record.max_staleness) != (newest.mode, newest.max_staleness):
                text = (
                    f"opened under {record.mode} {record.max_staleness}, but {newest.mode} {newest.max_staleness} "
                    f"was in force from step {newest.step} on"
                )
                self.broken.append(Violation(name, text))
        if record.step - record.max_staleness > committed:
            text = f"opened at version {committed}, too early for its bound of {record.max_staleness}"
            self.broken.append(Violation(name, text))

    def summary(self) -> Iterator[dict[str, object]]:
        """The history of it, for counts."""
        for record in self.settings:
            yield {
                "from_step": record.step,
                "mode": record.mode,
                "max_staleness": record.max_staleness,
                "inflight": record.inflight,
                "max_attempts": record.max_attempts,
                "max_resamples": record.max_resamples,
                "window": record.window,
            }


@dataclass(slots=True)
class Training(Plan):
    """The plan, and what was trained of it.

    Attributes:
        buffers: the `BufferOpened` record of each step.
        pipelines: the pipeline settings over time.
        commits: the commits of the surviving chain, in order.
        starts: how often each `(attempt, epoch)` of the trainer started at a version.
        attempts: the `TrainerAttempt` records, in order.
        consumed: number of trajectories that these commits consumed.
        causes: checks why groups were given up.
        _untrained: rewards of groups that were given up since the newest commit.
    """

    pipelines: Pipelines = field(default_factory=Pipelines)
    buffers: dict[int, BufferOpened] = field(default_factory=dict)
    commits: list[Committed] = field(default_factory=list)
    starts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    attempts: list[TrainerAttempt] = field(default_factory=list)
    consumed: int = 0
    causes: Causes = field(default_factory=Causes)
    _untrained: list[float] = field(default_factory=list)

    @property
    def version(self) -> int:
        """The newest version so far."""
        return self.commits[-1].record.version if self.commits else 0

    def _open(self, record: BufferOpened) -> None:
        if record.step in self.buffers:
            text = f"the buffer of step {record.step} was opened twice: its stamp would change"
            self.misplaced.append(Violation((str(record.step),), text))
        self._check_size((f"step {record.step}",), "promptsPerStep", record.capacity)
        self.pipelines.open(record, committed=len(self.commits))
        self.buffers.setdefault(record.step, record)
        self.stamps.setdefault(record.step, record.max_staleness)

    def _start(self, record: TrainerAttempt) -> None:
        if self.attempts:
            last = self.attempts[-1]
            if (record.attempt, record.epoch) < (last.attempt, last.epoch):
                text = (
                    f"trainer attempt {record.attempt} (epoch {record.epoch}) follows {last.attempt} "
                    f"(epoch {last.epoch})"
                )
                self.out_of_order.append(Violation((f"attempt {record.attempt}",), text))
        if record.version != self.version:
            text = f"starts from version {record.version}, but the newest is {self.version}"
            self.out_of_order.append(Violation((f"attempt {record.attempt}",), text))
        self.attempts.append(record)
        start = (record.attempt, record.epoch, record.version)
        self.starts[start] = self.starts.get(start, 0) + 1
        self._assigned.clear()

    def _commit(self, record: StepCommitted) -> None:
        fence = self.attempts[-1] if self.attempts else None
        if fence is None or (record.attempt, record.epoch) != (fence.attempt, fence.epoch):
            text = (
                f"version {record.version} was committed by attempt {record.attempt}, which was not in charge"
            )
            self.out_of_order.append(Violation((f"version {record.version}",), text))
        assigned = tuple(self._assigned)
        self._consume(
            Committed(
                record,
                assigned,
                self._consumed(record),
                scales=self._scales(self.specs[-1:]),
                untrained=tuple(self._untrained),
            )
        )

    def _consumed(self, record: StepCommitted) -> tuple[Consumed, ...]:
        consumed = []
        for trajectory in (t for batch in record.micro_batches for t in batch):
            member, group = self._member(trajectory) or Member(), self.groups.get(group_of(trajectory))
            step = group.step if group is not None else None
            consumed.append(
                Consumed(
                    trajectory, record.version - 1, member.attempt, member.generated, member.rewarded, step
                )
            )
        return tuple(consumed)

    def _consume(self, commit: Committed) -> None:
        step = commit.record.version - 1
        if commit.restored:
            # Where its opening was lost, too, another bound may have been in force when it was opened again.
            self.stamps[step] = commit.record.max_staleness
        if commit.record.max_staleness != self.stamps.get(step, commit.record.max_staleness):
            text = f"its commit is under the bound {commit.record.max_staleness}, its buffer under {self.stamps[step]}"
            self.misplaced.append(Violation((f"version {step + 1}",), text))
        for name in dict.fromkeys(group_of(c.trajectory) for c in commit.consumed):
            if name in self.groups:
                self.groups[name].consumed.append(step)
        self.commits.append(commit)
        self.consumed += len(commit.consumed)
        self._assigned.clear()
        self._untrained.clear()
        self.causes.step_ended()

    def _assign(self, record: MicroBatchAssigned) -> None:
        self._assigned.append(record)
        for name in record.groups:
            if name in self.groups:
                self.groups[name].assigned = True

    @staticmethod
    def _scales(specs: Iterable[dict[str, Any]]) -> frozenset[bool]:
        return frozenset(spec["algorithm"]["scaleByStd"] for spec in specs)
