"""Which trajectories may be what kills engines, and how they are tried apart.

A process that dies says nothing about which of its trajectories killed it, so what it held is generated again at once,
like after any death (`placement` says on which engines). What was held through `QUARANTINE_DEATHS` of them is
quarantined, and is not generated beside other work any more: so no trajectory takes harmless ones with it more often
than that. One group may be tried before: the early trial (`early_trial`).

What is quarantined is tried in cohorts: one cohort at a time, on an engine that holds nothing else. A cohort that is
generated is released: its members are ordinary trajectories again. If the engine dies, the cohort is split in halves,
which are tried one after the other; siblings stay together. A prompt that was alone on an engine that died has *failed*
an attempt. `maxAttempts` of these, or of its deaths that nothing else explains (`earlier_failures`), end its group. The
others then start at no deaths: it explains their deaths.

While a sibling is quarantined, siblings of its group that wait for an engine continue to wait: they may be as deadly.

The number of deaths is in the ledger; the cohorts are not, and a new coordinator makes them again from these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_core.actions import SendToEngine
from rljob_core.job_state import QUARANTINE_DEATHS, Sibling
from rljob_core.messages import EngineDied, Release
from rljob_core.planner import early_trial
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.trajectory import State, group_of, is_evaluation


@dataclass(frozen=True, slots=True)
class Trial:
    """What one round of dispatch does about what is quarantined.

    Attributes:
        members: trajectories to send to `engine` now.
        apart: engines that take no other work.
        groups: groups whose waiting siblings are not sent out.
        yields: whether the trial lets other work go first; if there is none, the plan is to be made again.
    """

    members: tuple[str, ...] = ()
    engine: EngineView | None = None
    apart: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    yields: bool = False


NO_TRIAL = Trial()


def plan_trial(context: PlannerContext) -> Trial:
    """What of the quarantine to try now, and what this keeps other work from."""
    early_trial.release_if_progressed(context)
    quarantined, cohorts = _quarantined(context), context.cohorts
    if not quarantined:
        cohorts.waiting = []
        return NO_TRIAL
    cohorts.keep(quarantined)
    _form_cohorts(context, quarantined)
    groups = frozenset(map(group_of, quarantined))
    if tried_at := frozenset(filter(None, quarantined.values())):
        return Trial(apart=tried_at, groups=groups)
    found, waits = _choose(context), cohorts.awaits_successor(context.liveness.heartbeats)
    is_early = cohorts.early is not None and not context.state.quarantined
    if is_early and not waits and (found is None or context.has_work(found[0].engine)):
        cohorts.early = None  # no engine is emptied for it
        return plan_trial(context)
    if found is None:
        return Trial(groups=groups)
    engine, members = found
    if context.has_work(engine.engine):
        return Trial(apart=frozenset() if waits else frozenset({engine.engine}), groups=groups)
    tried = filter(None, map(context.state.sibling, members))
    if any(map(context.lookups.is_pending, tried)):
        return Trial(apart=frozenset({engine.engine}), groups=groups)  # all of them are sent out together
    if cohorts.other_work_first and sum(e.reachable for e in context.liveness.engines.values()) == 1:
        cohorts.other_work_first = False
        return Trial(groups=groups, yields=True)
    cohorts.other_work_first = True
    return Trial(members, engine, frozenset({engine.engine}), groups)


def is_tried(context: PlannerContext, sibling: Sibling) -> bool:
    """Whether a sibling is generated apart, if it is generated."""
    return sibling.is_quarantined or sibling in early_trial.members(context)


def may_be_excused(context: PlannerContext, deaths: int) -> bool:
    """Whether a death alone is nobody's failure that has taken other engines, or the coordinator, too.

    Not forever: a prompt may take the whole machine with it each time.
    """
    return deaths < QUARANTINE_DEATHS + context.spec.pipeline.max_attempts


def on_engine_lost(
    context: PlannerContext, engine: str, held: Sequence[str], report: EngineDied | None, *, explained: bool
) -> None:
    """Split what is quarantined of what a dead engine held.

    Args:
        engine: the dead engine.
        held: everything that it was generating, in the order in which it was sent.
        report: of the process that watched the engine, if there is one.
        explained: whether this death has ended a group.
    """
    if explained:
        context.evaluation.explain_deaths()
    early_trial.on_engine_lost(context, engine, held, report, explained=explained)
    cohorts, quarantined = context.cohorts, _quarantined(context)
    lost = [t for t in held if t in quarantined]
    if len(set(map(group_of, lost))) == 1:
        cohorts.postpone(lost)
    else:
        cohorts.insert(*_halves(lost))
        if early := [t for t in lost if cohorts.early is not None and group_of(t) == cohorts.early.group]:
            cohorts.insert(early)
    if lost:
        cohorts.awaited_since = context.liveness.heartbeats


def recall_siblings(context: PlannerContext, engine: str, held: Iterable[Sibling]) -> None:
    """Have engines give back what they have not begun, of groups of which another engine has died.

    Siblings are parted over engines (`placement`). If their prompt kills engines, each of these dies as soon as it
    begins one; so what waits there is sent out together with what the dead engine held. Nothing is recalled for an
    engine whose crash was not reported: it may have gone with its machine.
    """
    if engine not in context.liveness.dead:
        return
    groups = (context.state.groups.get(g) for g in dict.fromkeys(group_of(s.id) for s in held))
    elsewhere: dict[str, list[Sibling]] = {}
    for sibling in (s for group in groups if group is not None for s in group.siblings):
        begun = sibling.deaths or sibling.inherited is not None
        if sibling.state is State.GENERATING and not begun and context.reaches(sibling.engine):
            elsewhere.setdefault(sibling.engine, []).append(sibling)
    for name, siblings in elsewhere.items():
        ids, attempts = tuple(s.id for s in siblings), tuple(s.attempt for s in siblings)
        release = Release(ids, attempts, unless_begun=True)
        context.act(SendToEngine(name, (release,), context.site_of(name)))


def _quarantined(context: PlannerContext) -> dict[str, str]:
    """All quarantined trajectories, with the engines that are trying them; "" for one that waits."""
    found: dict[str, str] = {}
    for trajectory in context.state.quarantined:
        sibling = context.state.sibling(trajectory)
        if sibling is not None:
            found[trajectory] = _engine(sibling)
    found |= {sibling.id: _engine(sibling) for sibling in early_trial.members(context)}
    run = context.evaluation
    return found | {trajectory: run.engines.get(trajectory, "") for trajectory in run.quarantined()}


def _engine(sibling: Sibling) -> str:
    return sibling.engine if sibling.state is State.GENERATING else ""


def _form_cohorts(context: PlannerContext, quarantined: Mapping[str, str]) -> None:
    """After a restart: what is being tried is a cohort; of the others, those of equal deaths are two halves."""
    known = {t for cohort in context.cohorts.waiting for t in cohort}
    alike: dict[tuple[int, str], list[str]] = {}
    for trajectory in sorted(quarantined.keys() - known):
        deaths = early_trial.deaths_of(context, trajectory)
        alike.setdefault((deaths, quarantined[trajectory]), []).append(trajectory)
    for (_, engine), members in sorted(alike.items()):  # those of the most deaths come to be the first
        context.cohorts.insert(*([members] if engine else _halves(members)))


def _halves(members: Iterable[str]) -> tuple[list[str], list[str]]:
    """Two cohorts; siblings stay together: what kills engines ends its group."""
    groups: dict[str, list[str]] = {}
    for trajectory in members:
        groups.setdefault(group_of(trajectory), []).append(trajectory)
    parts = list(groups.values())
    middle = (len(parts) + 1) // 2
    return [t for part in parts[:middle] for t in part], [t for part in parts[middle:] for t in part]


def _choose(context: PlannerContext) -> tuple[EngineView, tuple[str, ...]] | None:
    """The engine that is or will be empty first, and what of the next cohort it can try."""
    for cohort in context.cohorts.waiting:
        if early_trial.awaits_rivals(context, group_of(cohort[0])):
            continue
        able: list[tuple[int, str, EngineView, list[str]]] = []
        for engine in context.liveness.engines.values():
            members = [t for t in cohort if _can_try(context, engine, t)]
            if members and engine.takes_work:
                able.append((engine.assigned, engine.engine, engine, members))
        if able:
            _, _, engine, members = min(able, key=lambda found: found[:2])
            return engine, tuple(members[: engine.slots])
    return None


def _can_try(context: PlannerContext, engine: EngineView, trajectory: str) -> bool:
    if is_evaluation(trajectory):
        min_version = context.evaluation.version
    elif context.state.sibling(trajectory) is None:
        return False
    else:
        min_version = context.state.buffers.buffer_of(group_of(trajectory)).min_version
    return engine.admits(min_version, waits=context.swaps_on_its_own)
