"""What is generated next, and on which engine: a running evaluation first, then the groups of the earliest buffer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from functools import partial

from rljob_core.actions import PublishMetrics, SendToEngine
from rljob_core.job_state import GroupState, Sibling
from rljob_core.job_state.dispatch_order import Waiting
from rljob_core.messages import Generate
from rljob_core.planner import backpressure, migration, quarantine
from rljob_core.planner.backpressure import Allowance
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView, choose, whole
from rljob_core.planner.evaluation import Evaluation, prompt_of
from rljob_core.planner.far_engines import FarEngines, awaits_newest
from rljob_core.planner.metrics_line import metrics_line
from rljob_core.planner.placement import Placement, open_engines
from rljob_core.planner.quarantine import Trial
from rljob_core.records import Dispatched, Evaluated, Inherited
from rljob_core.stable_hash import stable_hash
from rljob_core.staleness import Buffer
from rljob_core.trajectory import State, group_of

ATTEMPTS_PER_EPOCH = 1_000_000
"""Attempts of evaluation answers that one coordinator may use: their numbers begin at its epoch times this."""
DISPATCHED_ITEMS = 2048
"""Trajectories of one `Dispatched` record at most: with everything that they inherit, it fits into a message."""


@dataclass(slots=True)
class Outbox:
    """What one round of dispatch sends.

    Attributes:
        allowance: what the trajectory stream still has room for.
        items: work by engine.
        reserved: the part of it that training needs, by engine and `min_version`: one record each.
        siblings: ids of the siblings in it.
    """

    allowance: Allowance
    items: dict[str, list[Generate]] = field(default_factory=dict)
    reserved: dict[tuple[str, int], list[Generate]] = field(default_factory=dict)
    siblings: set[str] = field(default_factory=set)

    def add(self, context: PlannerContext, engine: EngineView, item: Generate) -> None:
        """Give an engine one trajectory more."""
        engine.assigned += 1
        self.items.setdefault(engine.engine, []).append(item)
        context.transfers.sent(engine.site)

    def admits(self, context: PlannerContext, sibling: Sibling, buffer: Buffer) -> bool:
        """Whether the trajectory stream has room for what a sibling may become."""
        return self.allowance.admits(buffer.step, backpressure.sibling_bytes(context, group_of(sibling.id)))

    def admits_answer(self, context: PlannerContext, trajectory: str) -> bool:
        """Whether the trajectory stream has room for what a held-out answer may become."""
        return self.allowance.admits_answer(backpressure.answer_bytes(context, trajectory))

    def send_answer(self, context: PlannerContext, trajectory: str, engine: EngineView) -> None:
        """Give an engine a held-out answer."""
        context.evaluation.engines[trajectory] = engine.engine
        self.add(context, engine, _answer(context, trajectory))
        self.allowance.spend_answer(backpressure.answer_bytes(context, trajectory))

    def send(
        self,
        context: PlannerContext,
        sibling: Sibling,
        engine: EngineView,
        inherited: Inherited | None,
        *,
        min_version: int,
    ) -> None:
        """Give an engine a sibling whose tokens must be of `min_version` or newer."""
        step, newest = context.state.buffers.buffer_of(group_of(sibling.id)).step, context.state.version
        # To ask for the engine's own version costs nothing and leaves the group room to move to a later buffer. An
        # engine whose version is newer than the last commit has weights of a lost commit, and will go back.
        oldest = min(engine.version, newest)
        is_needed = step == newest and context.admission.trainer_starves
        may_wait = context.swaps_on_its_own and not engine.stuck
        if inherited is None and not is_needed and may_wait and awaits_newest(context, engine, sibling.id):
            oldest = newest  # the trainer does not wait for it yet: it begins under the weights that are on their way
        min_version = max(min_version, oldest)
        item = _generate(context, sibling, min_version, inherited)
        self.add(context, engine, item)
        self.allowance.spend(step, backpressure.sibling_bytes(context, group_of(sibling.id)))
        self.siblings.add(sibling.id)
        self.reserved.setdefault((engine.engine, min_version), []).append(item)


def dispatch(context: PlannerContext) -> None:
    """Send waiting trajectories to engines with room."""
    outbox = Outbox(backpressure.allowance(context))
    _fill(context, outbox, trial := quarantine.plan_trial(context))
    if trial.yields and not outbox.items:
        _fill(context, outbox, quarantine.plan_trial(context))
    for (engine, min_version), reserved in outbox.reserved.items():
        for start in range(0, len(reserved), DISPATCHED_ITEMS):
            items = reserved[start : start + DISPATCHED_ITEMS]
            ids, attempts = tuple(i.trajectory for i in items), tuple(i.attempt for i in items)
            inherited = {i.trajectory: i.inherited for i in items if i.inherited is not None}
            context.emit(Dispatched(ids, attempts, engine, min_version, inherited, context.site_of(engine)))
    for engine, work in outbox.items.items():
        context.act(SendToEngine(engine, tuple(work), context.site_of(engine)))


def _fill(context: PlannerContext, outbox: Outbox, trial: Trial) -> None:
    _dispatch_trial(context, outbox, trial)
    _dispatch_evaluation(context, outbox, trial)
    _dispatch_moved(context, outbox, trial)
    _dispatch_siblings(context, outbox, trial)


def _choose(context: PlannerContext, trial: Trial, min_version: int) -> EngineView | None:
    engines, share = open_engines(context, trial.apart), whole
    if context.transfers.sites:
        far = FarEngines(context, crowded=False)
        share = partial(far.share, prompt=None, min_version=min_version)
    waits = context.swaps_on_its_own
    return choose(engines, min_version=min_version, waits=waits, prefetch=context.prefetch, share=share)


def _dispatch_trial(context: PlannerContext, outbox: Outbox, trial: Trial) -> None:
    engine = trial.engine
    if engine is None:
        return
    for trajectory in trial.members:
        if (sibling := context.state.sibling(trajectory)) is not None:
            buffer = context.state.buffers.buffer_of(group_of(trajectory))
            if not outbox.admits(context, sibling, buffer):
                continue
            if _resume(context, outbox, sibling, buffer, [engine]) is None:
                outbox.send(context, sibling, engine, None, min_version=buffer.min_version)
        elif outbox.admits_answer(context, trajectory):
            outbox.send_answer(context, trajectory, engine)


def _dispatch_evaluation(context: PlannerContext, outbox: Outbox, trial: Trial) -> None:
    run = context.evaluation
    postponed: list[str] = []
    while run.waiting:
        if run.waiting[0] not in run.attempts:  # it was scored meanwhile
            run.waiting.popleft()
            continue
        if group_of(run.waiting[0]) in trial.groups:
            postponed.append(run.waiting.popleft())
            continue
        engine = _choose(context, trial, run.version)
        if engine is None:
            break
        if not outbox.admits_answer(context, run.waiting[0]):
            break
        outbox.send_answer(context, run.waiting.popleft(), engine)
    run.waiting.extendleft(reversed(postponed))


def _answer(context: PlannerContext, trajectory: str) -> Generate:
    run, attempt = context.evaluation, context.evaluation.attempts[trajectory]
    return Generate(
        trajectory=trajectory,
        attempt=attempt,
        prompt=prompt_of(trajectory),
        min_version=run.version,
        sample=run.sample_of(trajectory),
        seed=sample_seed(context.spec.data.seed, trajectory, attempt),
        survivor=trajectory in run.deaths,
    )


def _dispatch_moved(context: PlannerContext, outbox: Outbox, trial: Trial) -> None:
    """Send what was released to the engines that keep slots for it."""
    for trajectory in list(context.migrations.under_way):
        sibling = context.state.sibling(trajectory)
        if sibling is None or sibling.state is not State.RESERVED or context.lookups.is_pending(sibling):
            continue
        target = context.migrations.end(trajectory, context.liveness)
        buffer = context.state.buffers.buffer_of(group_of(trajectory))
        # Whatever does not fit there now is dispatched like all else.
        if target is not None and not trial.apart and outbox.admits(context, sibling, buffer):
            _resume(context, outbox, sibling, buffer, [target])


def _dispatch_siblings(context: PlannerContext, outbox: Outbox, trial: Trial) -> None:
    queue, placement = context.state.waiting, Placement(context, apart=trial.apart)
    away = context.held_away  # others begin as much beside it
    postponed: list[Waiting] = []
    while queue:
        waiting = queue.pop()
        step, trajectory = waiting.step, waiting.trajectory
        sibling = context.state.sibling(trajectory)
        if sibling is None or sibling.state is not State.RESERVED or trajectory in outbox.siblings:
            continue  # an id may be queued more than once
        buffer = context.state.buffers.buffer_of(group_of(trajectory))
        if buffer.step != step:  # the group has moved, and was queued for that buffer
            continue
        begun = len(outbox.siblings) - away
        if not context.admission.admits(context.state, context.spec, buffer, beginning=begun):
            postponed.append(waiting)
            break
        group = context.state.groups[group_of(trajectory)]
        # Only trials send what is quarantined.
        if group.id in trial.groups or _awaits_lookup(context, group, sibling):
            postponed.append(waiting)
            continue
        if not outbox.admits(context, sibling, buffer):
            postponed.append(waiting)
            if step > context.state.version:
                break  # what comes after it waits for it
            continue
        placement.begin(group)
        resumed = _resume(context, outbox, sibling, buffer, placement.able)
        if resumed is not None:
            placement.place(resumed)
            continue
        engine = placement.choose(buffer.min_version)
        if engine is not None:
            outbox.send(context, sibling, engine, None, min_version=buffer.min_version)
            continue
        postponed.append(waiting)
        if not placement.is_survivor or placement.is_over:
            break
    for waiting in postponed:
        queue.put_back(waiting)


def _resume(
    context: PlannerContext,
    outbox: Outbox,
    sibling: Sibling,
    buffer: Buffer,
    engines: Collection[EngineView],
) -> EngineView | None:
    """Send a sibling to one of these engines with its progress; None if there is none that it may inherit there."""
    found = migration.choose_to_resume(context, sibling, buffer, engines)
    if found is None:
        return None
    engine, made = found
    outbox.send(context, sibling, engine, made, min_version=max(buffer.min_version, made.span.max))
    return engine


def _awaits_lookup(context: PlannerContext, group: GroupState, sibling: Sibling) -> bool:
    """Whether the progress is looked up of a sibling, or of one that is to go with it to the same engine."""
    together = group.siblings if group.deaths else (sibling,)
    return any(map(context.lookups.is_pending, together))


def _generate(
    context: PlannerContext, sibling: Sibling, min_version: int, inherited: Inherited | None
) -> Generate:
    seed = sample_seed(context.spec.data.seed, sibling.id, sibling.attempt)
    group = context.state.groups[group_of(sibling.id)]
    return Generate(
        trajectory=sibling.id,
        attempt=sibling.attempt,
        prompt=group.prompt,
        min_version=min_version,
        sample="sampled",
        seed=seed if inherited is None else inherited.seed,
        inherited=inherited,
        survivor=group.deaths > 0,
    )


def resend(context: PlannerContext, engine: str = "") -> None:
    """Send again what is being generated, as the message may be lost, or its coordinator may have died before it.

    An engine ignores an attempt that it has, and answers `PayloadAbsent` to one that it had. Engines that cannot be
    reached are left out.

    Args:
        engine: the only engine to send to; empty for all of them.
    """
    sent: dict[str, list[Generate]] = {}
    for name in filter(context.reaches, [engine] if engine else list(context.state.generating)):
        for sibling in context.state.generating_at(name):
            # A version that was lost with its commit may never come.
            min_version = min(sibling.min_version, context.state.version)
            sent.setdefault(name, []).append(_generate(context, sibling, min_version, sibling.inherited))
    for trajectory, assigned in context.evaluation.engines.items():
        if engine in {"", assigned} and context.reaches(assigned):
            sent.setdefault(assigned, []).append(_answer(context, trajectory))
    for name, items in sent.items():
        context.act(SendToEngine(name, tuple(items), context.site_of(name)))


def advance_evaluation(context: PlannerContext) -> None:
    """Record the evaluation that is done, and start the one that is due."""
    settings, version = context.spec.evaluation, context.state.version
    if settings is None:
        return
    run = context.evaluation
    if run.sets and run.done:
        later = run.later()
        score, *others = run.set_scores(settings.pass_reward)
        record = Evaluated(
            **asdict(score),
            version=run.version,
            given_up=tuple(run.given_up),
            newest=max(later, default=0),
            mixed=len(later),
            sets={asked.name: score for asked, score in zip(run.sets[1:], others, strict=True)},
        )
        context.emit(record)
        line = context.metrics.evaluated(
            record, metrics_line(context), name=run.sets[0].name, seconds=context.now - run.started
        )
        context.evaluation = run = Evaluation.none()
        context.act(PublishMetrics(line))
    due = version % settings.every_steps == 0 or version == context.last_version
    if not run.sets and due and version not in context.state.evaluated:
        # An earlier coordinator's attempts, whose results may still arrive, have other numbers.
        first = context.epoch * ATTEMPTS_PER_EPOCH + 1
        given_up = {prompt for earlier in context.state.evaluated.values() for prompt in earlier.given_up}
        context.evaluation = Evaluation.start(
            version=version,
            sets=context.asked,
            started=context.now,
            first_attempt=first,
            given_up=sorted(given_up),
        )


def sample_seed(seed: int, trajectory: str, attempt: int) -> int:
    """A 31-bit seed for one attempt at one trajectory.

    A sample's random stream thus depends on the job, the trajectory and its attempt, not on the engine.
    """
    return stable_hash(f"{seed}/{trajectory}/{attempt}") & 0x7FFFFFFF
