"""`PlannerContext`: what the planner's modules share while they make one decision."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rljob_core.actions import Action, DeletePayloads, DeleteRewards
from rljob_core.config import JobConfig
from rljob_core.errors import Fenced
from rljob_core.job_state import JobState, Sibling
from rljob_core.messages import Resume
from rljob_core.planner.admission import Admission
from rljob_core.planner.cohorts import Cohorts
from rljob_core.planner.evaluation import Evaluation, asked_sets
from rljob_core.planner.liveness import Liveness
from rljob_core.planner.migrations import Migrations
from rljob_core.planner.pool_speeds import PoolSpeeds
from rljob_core.planner.predicted_lengths import PredictedLengths
from rljob_core.planner.progress_lookups import ProgressLookups
from rljob_core.planner.running_metrics import RunningMetrics
from rljob_core.planner.site_links import SiteLinks
from rljob_core.planner.site_transfers import SiteTransfers
from rljob_core.planner.stored_messages import ScoreChecks, StoredMessages
from rljob_core.planner.stream_room import StreamRoom
from rljob_core.records import Record
from rljob_core.spec import Inflight


@dataclass(slots=True)
class TrainerLink:
    """What this coordinator has sent to the trainer gang, and whether the gang has answered to its epoch.

    The ledger holds only which gang is in charge: `JobState.trainer` is the fence `(attempt, epoch)`.

    Attributes:
        accepted: whether a gang has answered to this coordinator's epoch. No micro-batch is sent before.
        resumed: the newest `Resume` that this coordinator sent; None before the first.
        waits_after: the version at which the trainer said that it waits, and the micro-batches of the step that it had
            taken; None if it has not.
        checkpoint_asked: attempt and version for which the job's last checkpoint was asked for.
    """

    accepted: bool = False
    resumed: Resume | None = None
    waits_after: tuple[int, int] | None = None
    checkpoint_asked: tuple[int, int] | None = None

    @property
    def resume_number(self) -> int:
        """Number of the newest `Resume`, which micro-batches name; 0 if none was sent."""
        return self.resumed.number if self.resumed is not None else 0

    def next_resume_number(self, attempt: int, *, in_charge: int | None) -> int:
        """Number of the next `Resume` to `attempt`: `Resume`s of one attempt count from 1.

        Args:
            in_charge: the attempt that the ledger has in charge, if any.
        """
        before = self.resumed
        if before is None or in_charge is None or not in_charge == attempt == before.attempt:
            return 1
        return before.number + 1


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to append to the ledger, then actions to run, in order, once the records are acknowledged."""

    records: tuple[Record, ...]
    actions: tuple[Action, ...]


class PlannerContext:
    """The job's state, what the coordinator knows beyond it, and the decision being made.

    `state` is what the ledger says, and only `emit` changes it. The other parts are not in the ledger: a new
    coordinator fills them again from signals and from the headers of stored messages. Each part is a small class with
    the transitions that belong to it.

    Attributes:
        job: UID of the job.
        spec: the job's spec; `pipeline`, and fields that no coordinator reads, may change while the job runs.
        prefetch: work sent to an engine beyond its slots, as a fraction of them.
        now: time of the decision being made, in seconds of the coordinator's own clock; no promise depends on it.
        state: the fold of the ledger.
        liveness: engines, leases and heartbeats.
        messages: stored payloads and rewards that are still needed.
        score_checks: payloads that wait for their scores.
        lookups: lookups of the progress from which trajectories resume.
        trainer_link: what was sent to the trainer gang.
        asked: what an evaluation asks of each held-out set; empty if the job has no evaluation.
        evaluation: the evaluation that is running; one of no sets if none is.
        metrics: sums for the job's metrics.
        pool_speeds: how fast each pool's engines are, for whoever scales them.
        cohorts: trajectories that may be what kills engines.
        admission: how much is begun ahead of the trainer.
        lengths: how long answers are expected to be.
        migrations: trajectories that move from one engine to another.
        room: the size of the trajectory stream, and what planned prompts will take of it.
        pipeline_refused: why the newest `spec.pipeline` is not in force; empty if it is.
        sites: which sites can be reached.
        transfers: the links to sites: backlogs, and when weights arrive.
        unmoved: changes of the buffers and groups kept waiting with which no group was to be moved; None if not known.
        optimizer_reset: what the trainer last said about a checkpoint that it missed; empty if it missed none.
        samples_lost: of each reward worker that cannot keep samples, when it last said so, and its words.
    """

    def __init__(
        self, config: JobConfig, *, prefetch: float, state: JobState, held_out: Sequence[int] | None
    ) -> None:
        self.job = config.uid
        self.spec = config.spec
        self.prefetch = prefetch
        self.now = 0.0
        self.state = state
        self.liveness = Liveness()
        self.sites = SiteLinks(config.grace)
        self.sites.meet(*config.spec.rollout.pool_sites.values())
        self.transfers = SiteTransfers(config.links)
        self.messages = StoredMessages()
        self.score_checks = ScoreChecks()
        self.lookups = ProgressLookups()
        self.trainer_link = TrainerLink()
        self.asked = asked_sets(config.spec, held_out)
        self.evaluation = Evaluation.none()
        self.metrics = RunningMetrics()
        self.pool_speeds = PoolSpeeds()
        self.cohorts = Cohorts()
        self.admission = Admission()
        self.lengths = PredictedLengths()
        self.migrations = Migrations()
        self.room = StreamRoom()
        self.pipeline_refused = ""
        self.unmoved: tuple[int, Collection[str]] | None = None
        self.optimizer_reset = ""
        self.samples_lost = dict[str, tuple[float, str]]()
        self._records: list[Record] = []
        self._actions: list[Action] = []

    @property
    def epoch(self) -> int:
        """Number of this coordinator's writer epoch."""
        return self.state.writer.number

    @property
    def last_version(self) -> int:
        """The version that ends the job.

        That is `spec.steps`, which the user may change, but no less than the steps whose buffers are open already.
        """
        return max(self.spec.steps, self.state.buffers.next_step)

    @property
    def swaps_on_its_own(self) -> bool:
        """Whether an engine that has work takes newer weights as soon as they are announced."""
        return bool(self.spec.pipeline.inflight != Inflight.KEEP)

    @property
    def trainer_waits(self) -> bool:
        """Whether the trainer has nothing to compute, as far as it has said: it waits for the current step's groups."""
        fed = len(self.state.micro_batches)
        return self.trainer_link.accepted and (
            not fed or self.trainer_link.waits_after == (self.state.version, fed)
        )

    def most_in_environment(self, slots: int) -> int:
        """Episodes that wait for their environment, which an engine may have beyond its slots."""
        environment = self.spec.rollout.environment
        return 0 if environment is None else int(slots * (environment.episodes_per_slot - 1))

    def site_of(self, engine: str) -> str:
        """Where an engine is, by its signals, or else by the ledger; "" for the hub."""
        if (view := self.liveness.engines.get(engine)) is not None:
            return view.site
        if (loss := self.sites.losses.get(engine)) is not None:
            return loss.site
        siblings = self.state.generating_at(engine)
        return siblings[0].site if siblings else ""

    def has_work(self, engine: str) -> bool:
        """Whether an engine is generating anything, as far as is known here."""
        return engine in self.state.generating or engine in self.evaluation.engines.values()

    def reaches(self, engine: str) -> bool:
        """Whether what is sent to an engine can be expected to arrive."""
        return self.sites.reaches(self.site_of(engine))

    @property
    def held_away(self) -> int:
        """How many trajectories engines are generating whose site is away."""
        if not self.sites.away:
            return 0
        held = self.state.generating.items()
        return sum(len(ids) for engine, ids in held if self.sites.is_away(self.site_of(engine)))

    def check_epoch(self, epoch: int) -> None:
        """Stop if an engine or trainer follows a newer coordinator than this one.

        Raises:
            Fenced: `epoch` is newer. Its claim need not be in the ledger: the claim may be lost and its coordinator
                alive.
        """
        if epoch > self.epoch:
            raise Fenced(
                f"a coordinator of the newer epoch {epoch} has been heard of (this one is {self.epoch})"
            )

    def emit(self, record: Record) -> None:
        """Add a record to the decision and apply it to the state at once."""
        self.state.apply(record)
        self._records.append(record)

    def act(self, action: Action) -> None:
        """Add an action to the decision, to be run once the records are acknowledged."""
        self._actions.append(action)

    def release(self, sibling: Sibling) -> None:
        """Give up everything stored of the sibling's current attempt."""
        key = (sibling.id, sibling.attempt)
        self.messages.release(key)
        self.lookups.found.pop(key, None)

    def flush_decision(self) -> Decision:
        """The records and actions added since the last call, and deletions of messages that nothing needs now."""
        if sequences := self.messages.payloads.collect():
            self.act(DeletePayloads(tuple(sequences)))
        if sequences := self.messages.rewards.collect():
            self.act(DeleteRewards(tuple(sequences)))
        decision = Decision(tuple(self._records), tuple(self._actions))
        self._records, self._actions = [], []
        return decision
