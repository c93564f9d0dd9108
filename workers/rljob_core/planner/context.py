"""What the planner's parts share: the job's state, and the records and actions of the decision at hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rljob_core.actions import (
    Action,
    DeletePayloads,
    DeleteRewards,
    PublishMetrics,
    SendToEngine,
    SendToTrainer,
    StoredProgress,
)
from rljob_core.config import JobConfig
from rljob_core.dispatch import EngineView
from rljob_core.errors import Fenced
from rljob_core.evaluation import Evaluation
from rljob_core.job_metrics import RunningMetrics
from rljob_core.job_state import JobState, Sibling
from rljob_core.message_refcounts import MessageRefcounts
from rljob_core.messages import Cancel, Finish, Resume, RewardResult, StepMetrics
from rljob_core.records import GroupAborted, JobFinished, Record, SiblingReset
from rljob_core.trajectory import State, group_of

DETAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to append, then actions to run once they are acknowledged, in order."""

    records: tuple[Record, ...]
    actions: tuple[Action, ...]


class PlannerContext:
    """State, and how attempts, groups and the job end.

    Attributes:
        state: the fold of the ledger; only `emit` changes it.
        engines, leases: who is alive, and heartbeats since each was heard.
        beats: own heartbeats so far.
        rejected_beats: own heartbeats for which no engine has been able to use the newest weights.
        leaving: engines that have drained, by the message of trajectories up to which their results are to be taken.
        lost: engines that this coordinator has given up, and what they had.
        payloads, reward_messages: which stored messages are still needed.
        early_rewards: results that overtook their payload's header, by its digest.
        unscored: what waits for a score, and for how many heartbeats.
        lapsed: what is to be generated again, and may go on from what an earlier attempt has generated.
        sought: of these, attempts by id, those whose progress is being looked up; `progress`: what was found.
        swept: the version at which progress that nobody needs was looked for last.
        asked_scores: what waited when scores were last asked about; and how often they were.
        trainer_accepted: whether a gang has answered to this writer epoch.
        resumed: what the current trainer attempt was told last by this coordinator; its number counts from 1.
        asked: attempt and version for which a last checkpoint was asked for.
        failures: the newest failed attempts, for the message of a job that gives up.
        pipeline_refused: why the newest `spec.pipeline` is not taken over; empty if it is.
    """

    def __init__(self, config: JobConfig, *, prefetch: float) -> None:
        self.job = config.uid
        self.spec = config.spec
        self.prefetch = prefetch
        self.now = 0.0
        self.state = JobState()
        self.engines: dict[str, EngineView] = {}
        self.leases: dict[str, int] = {}
        self.beats = 0
        self.leaving: dict[str, int] = {}
        self.rejected_beats = 0
        self.lost: dict[str, list[tuple[str, int]]] = {}
        self.payloads = MessageRefcounts()
        self.reward_messages = MessageRefcounts()
        self.early_rewards: dict[tuple[str, int], dict[str, RewardResult]] = {}
        self.unscored: dict[tuple[str, int], int] = {}
        self.lapsed: list[str] = []
        self.sought: dict[str, int] = {}
        self.progress: dict[tuple[str, int], StoredProgress] = {}
        self.swept = -1
        self.asked_scores: tuple[tuple[str, int], ...] = ()
        self.score_checks = 0
        self.evaluation: Evaluation | None = None
        self.trainer_accepted = False
        self.resumed: Resume | None = None
        self.asked: tuple[int, int] | None = None
        self.failures: deque[str] = deque(maxlen=8)
        self.figures = RunningMetrics()
        self.pipeline_refused = ""
        self._records: list[Record] = []
        self._actions: list[Action] = []

    @property
    def epoch(self) -> int:
        """Number of the writer epoch."""
        return self.state.writer.number

    def hear_of(self, epoch: int) -> None:
        """Somebody follows a coordinator of that epoch.

        Raises:
            Fenced: it is a newer one. It need not be in the ledger: its claim may be lost, and it may live.
        """
        if epoch > self.epoch:
            raise Fenced(
                f"a coordinator of the newer epoch {epoch} has been heard of (this one is {self.epoch})"
            )

    def emit(self, record: Record) -> None:
        """Decide: the record changes the state now and goes to the ledger."""
        self.state.apply(record)
        self._records.append(record)

    def act(self, action: Action) -> None:
        """Have something done once the records so far are acknowledged."""
        self._actions.append(action)

    def take_decision(self) -> Decision:
        """What was decided since the last call, and the deletions that it allows."""
        if sequences := self.payloads.collect():
            self.act(DeletePayloads(tuple(sequences)))
        if sequences := self.reward_messages.collect():
            self.act(DeleteRewards(tuple(sequences)))
        decision = Decision(tuple(self._records), tuple(self._actions))
        self._records, self._actions = [], []
        return decision

    # ------------------------------------------------------------------------------------------ ends

    def let_go(self, sibling: Sibling) -> None:
        """Nobody needs what is stored of the sibling's current attempt any more."""
        key = (sibling.id, sibling.attempt)
        self.payloads.release([key])
        self.reward_messages.release([key])
        self.early_rewards.pop(key, None)
        self.progress.pop(key, None)

    def free_slot(self, engine: str) -> None:
        """An engine has one trajectory less."""
        view = self.engines.get(engine)
        if view is not None:
            view.assigned = max(0, view.assigned - 1)

    def reset(
        self, sibling: Sibling, reason: str, *, failure: bool, detail: str = "", carries: bool = False
    ) -> None:
        """Have the sibling generated again, from what there is of it (`carries`) or from nothing."""
        self.let_go(sibling)
        attempt, detail = sibling.attempt + 1, detail[:DETAIL_CHARACTERS]
        self.emit(SiblingReset(sibling.id, attempt, reason, failure, detail, carries))
        if carries:
            self.lapsed.append(sibling.id)

    def fail(self, sibling: Sibling, reason: str, *, detail: str) -> None:
        """An attempt failed: generate the sibling again, or give its prompt up."""
        self.failures.append(f"{sibling.id}: {reason}: {detail[:DETAIL_CHARACTERS]}")
        if sibling.failures + 1 < self.spec.pipeline.max_attempts:
            self.reset(sibling, reason, failure=True, detail=detail)
        else:
            self.abort(group_of(sibling.id), "PromptExhausted", {sibling.id: reason})

    def abort(self, group: str, reason: str, causes: dict[str, str] | None = None) -> None:
        """End a group without training on it; its siblings' generation is cancelled."""
        running: dict[str, list[Sibling]] = {}
        for sibling in self.state.groups[group].siblings:
            if sibling.state is State.GENERATING:
                self.free_slot(sibling.engine)
                running.setdefault(sibling.engine, []).append(sibling)
            self.let_go(sibling)
        self.emit(GroupAborted(group, reason, causes or {}))
        for engine, siblings in running.items():
            self.cancel(engine, [(s.id, s.attempt) for s in siblings])

    def cancel(self, engine: str, keys: Sequence[tuple[str, int]]) -> None:
        """Have an engine stop what nobody waits for any more."""
        if keys:
            trajectories, attempts = zip(*keys, strict=True)
            self.act(SendToEngine(engine, (Cancel(trajectories, attempts),)))

    def finish(self, outcome: JobFinished) -> None:
        """End the job for good; no group is left without an end."""
        if self.state.finished is not None:
            return
        self.emit(outcome)
        self.end_groups()
        if self.state.trainer is not None:
            self.dismissed(self.state.trainer.attempt)
        self.act(PublishMetrics(self.metrics_line()))

    def end_groups(self) -> None:
        """Abort whatever is open: the job is over."""
        for group in list(self.state.groups):
            self.abort(group, "JobFinished")

    def dismissed(self, attempt: int) -> bool:
        """Whether the job is over; if so, its trainer is told."""
        end = self.state.finished
        if end is not None:
            self.act(SendToTrainer(attempt, Finish(self.epoch, end.outcome, end.message)))
        return end is not None

    @property
    def last_version(self) -> int:
        """The version that ends the job: of `spec.steps`, which may change, but what is begun is trained."""
        return max(self.spec.steps, self.state.buffers.next_step)

    # ------------------------------------------------------------------------------------------ figures

    def metrics_line(self) -> StepMetrics:
        """Where the job stands, for people."""
        queues: dict[str, int] = {}
        for sibling in self.state.siblings():
            queues[sibling.state] = queues.get(sibling.state, 0) + 1
        line = self.figures.line(self.state, now=self.now)
        engines = self.engines.values()
        return replace(
            line,
            queues=queues,
            engines=len(engines),
            slots=sum(engine.slots for engine in engines),
            assigned=sum(min(engine.assigned, engine.slots) for engine in engines),
            pipeline=self.state.pipeline,
            pipeline_refused=self.pipeline_refused,
        )
