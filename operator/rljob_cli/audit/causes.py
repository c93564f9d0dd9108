"""Why groups were given up and why the job succeeded: the ledger must show the cause that a record names.

The coordinator decides by the ledger's records alone, so what it had decided by is there for the audit as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rljob_cli.audit.evidence import Violation
from rljob_cli.audit.ledger_items import Planned
from rljob_core.advantage import is_uniform
from rljob_core.records import GroupAborted, JobFinished, PipelineSet

ENGINE_LOST = "EngineLost"
"""Cause of an abort: it was found what engines died of, so nothing else is quarantined for their deaths."""
UNSENDABLE = "PromptUnsendable"
"""Cause of an abort: the prompt could not be sent to an engine. It is the coordinator's word alone, and not checked.

The audit could only render the prompt itself. But a row that was named is mended in its place, so that it renders by
now, and the data's own code may raise once and never again: an honest coordinator would be refuted. So the audit lists
these prompts, for somebody who knows the data to look at.
"""
_BY_OTHER_RECORDS = {"LedgerLost": "a restored step", "VersionRevoked": "a rollback"}
"""Reasons that no record of an abort has: they follow from other records."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was in force when a record was written.

    Attributes:
        spec: the spec under which the coordinator began; None if the ledger has lost it.
        pipeline: the newest pipeline settings; None if the ledger has lost them.
        finished: whether the job had ended.
        version: the newest version.
        evaluated: the versions that were evaluated.
        fence_is_new: whether the trainer's gang has just come under a new coordinator, which may lack assignments.
    """

    spec: dict[str, Any] | None
    pipeline: PipelineSet | None
    finished: bool
    version: int
    evaluated: Iterable[int]
    fence_is_new: bool


@dataclass(slots=True)
class Causes:
    """Checks each abort, and the job's success, when the history gets to its record.

    Attributes:
        groundless: what was given up, or ended, for no cause that the ledger shows.
    """

    groundless: list[Violation] = field(default_factory=list)
    _uniform: int = 0  # groups that were given up as uniform since the newest commit

    def step_ended(self) -> None:
        """A step is committed, restored or revoked."""
        self._uniform = 0

    def dropped(self, group: str, planned: Planned | None, step: int) -> None:
        """A restored step gives a group up: only one that has an entry in its buffer."""
        if planned is None or planned.step != step:
            self._blame(group, f"was given up when step {step} was restored, but has no entry in its buffer")

    def aborted(self, record: GroupAborted, planned: Planned, at: Moment) -> None:
        """A group is given up."""
        if not record.reason:  # `trajectories.one_ending` says so
            return
        checks: dict[str, Callable[[GroupAborted, Planned, Moment], Iterator[str]]] = {
            "UniformGroup": self._of_uniform,
            "PromptExhausted": _of_exhausted,
            "PayloadLost": _of_lost_payload,
            "JobFinished": _of_end,
        }
        check = checks.get(record.reason)
        if check is not None:
            for text in check(record, planned, at):
                self._blame(record.group, f"was given up as {record.reason}, {text}")
        elif record.reason in _BY_OTHER_RECORDS:
            what = _BY_OTHER_RECORDS[record.reason]
            self._blame(record.group, f"was given up as {record.reason}, which only {what} says")
        else:
            self._blame(record.group, f"was given up as {record.reason}, which is not a reason of the ledger")

    def succeeded(self, record: JobFinished, at: Moment) -> None:
        """The job has ended as a success: it must have made and evaluated its last version."""
        if record.outcome != "Succeeded" or at.spec is None:
            return
        steps = at.spec.get("steps", 0)
        if at.version < steps:
            self._blame("the job", f"has succeeded at version {at.version}, before spec.steps {steps}")
        elif at.spec.get("evaluation") is not None and at.version not in at.evaluated:
            self._blame("the job", f"has succeeded without an evaluation of its last version {at.version}")

    def _blame(self, name: str, text: str) -> None:
        self.groundless.append(Violation((name,), text))

    def _of_uniform(self, _: GroupAborted, planned: Planned, at: Moment) -> Iterator[str]:
        rewards = [m.rewarded.reward for m in planned.members.values() if m.rewarded is not None]
        if len(rewards) < len(planned.members):
            yield "but not all of it was scored"
        elif not is_uniform(rewards):
            yield "but its scores differ"
        if at.spec is not None and not at.spec["algorithm"].get("dropUniformGroups", False):
            yield "but spec.algorithm.dropUniformGroups is not set"
        self._uniform += 1
        if at.pipeline is not None and self._uniform > at.pipeline.max_resamples:
            yield f"but {at.pipeline.max_resamples} others of its step were: more are not replaced"


def _of_exhausted(record: GroupAborted, planned: Planned, at: Moment) -> Iterator[str]:
    if not record.causes or record.causes.keys() - planned.members.keys():
        yield "but none of its trajectories is named as the cause"
        return
    if set(record.causes.values()) == {UNSENDABLE}:
        if any(planned.members[trajectory].generated is not None for trajectory in record.causes):
            yield f"but an engine was sent its prompt, which is said to be {UNSENDABLE}"
        return
    if at.pipeline is None:
        return
    for trajectory, reason in record.causes.items():
        member = planned.members[trajectory]
        failed = max(member.failures, member.deaths if reason == ENGINE_LOST else 0) + 1
        if failed < at.pipeline.max_attempts:
            text = f"but {trajectory} has failed {failed} of {at.pipeline.max_attempts} attempts"
            yield f"{text}, by the ledger"


def _of_lost_payload(_: GroupAborted, planned: Planned, at: Moment) -> Iterator[str]:
    if not planned.assigned and not at.fence_is_new:
        yield "but the trainer was never sent it"


def _of_end(_: GroupAborted, __: Planned, at: Moment) -> Iterator[str]:
    if not at.finished:
        yield "but the job had not ended"
