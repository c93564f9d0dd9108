"""What happens to the work of a site that is away: it cannot be reached, which says nothing of its engines.

Its engines get nothing, and nothing that they do is waited for where others could do it. Of what they generate, only
what the current step waits for is generated again elsewhere, and only once the trainer waits for the step: groups that
are finished have been moved into it by then. The rest waits until the site is reached again, or its grace is over.
Nobody has died: attempts that end so are no failures and no deaths, and quarantine nothing.

A site that is reached again goes on: its engines are sent what was to be sent to them, and stop generating what others
have by now. What they had generated counts, unless others were given it; results of older attempts never count.

Weights may be announced to a site before they are there. An engine that awaits them keeps what it was sent. What the
current step waits for is taken from it once it has awaited them for as long as a site has to answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rljob_core.job_state import Sibling
from rljob_core.messages import AWAITED, EngineSignal
from rljob_core.planner import dispatch, endings, migration, site_marks
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.metrics_line import publish
from rljob_core.planner.site_links import AWAY_HEARTBEATS, MARK_HEARTBEATS
from rljob_core.staleness import Buffer, EntryState
from rljob_core.trajectory import State, group_of

SITE_AWAY = "SiteAway"
"""Why others generate what a site that is away was generating."""


def place(context: PlannerContext, view: EngineView, signal: EngineSignal) -> None:
    """Note where an engine is, and whether it can be reached there; it is counted in no load meanwhile."""
    view.site = signal.site
    view.reachable = context.sites.reaches(view.site)


def forget_left(context: PlannerContext) -> None:
    """Forget sites at which there is no pool any more, and no engine, unless something is to be cancelled there."""
    links, kept = context.sites, context.spec.rollout.pool_sites.values()
    for site in [site for site in links.links if site not in kept]:
        cancels = any(where == site for where, _ in links.cancelled.values())
        is_over = links.links[site].silent >= links.kept(site)
        is_left = not engines_at(context, site) and all(held.site != site for held in context.lookups.held)
        if is_left and (is_over or not cancels):
            links.forget(site)
            context.transfers.sites.pop(site, None)


def engines_at(context: PlannerContext, site: str) -> list[str]:
    """The engines at a site, by their signals or the ledger."""
    known = context.state.generating.keys() | context.liveness.engines.keys() | context.sites.losses.keys()
    return sorted(engine for engine in known if context.site_of(engine) == site)


def count_silence(context: PlannerContext) -> list[str]:
    """An own heartbeat came back: sites whose beats did not are away at some time.

    Returns:
        Sites that have been away for as long as their work is kept for them.
    """
    over = []
    for site, link in sorted(context.sites.links.items()):
        link.silent += 1
        if link.silent == AWAY_HEARTBEATS:
            link.reached = False
            _reach(context, site, reachable=False)
            site_marks.on_away(context, site)
            publish(context)
            if site in context.sites.lost:
                over.append(site)
        elif link.silent == context.sites.kept(site):
            over.append(site)
    return over


def on_beat(context: PlannerContext, site: str) -> None:
    """A beat came back: from now on the site can be reached."""
    link = context.sites.links[site]
    was_away, is_first = link.away, not link.met
    link.silent, link.met = 0, True
    if not link.reached:
        link.reached, link.marks.beats = True, MARK_HEARTBEATS  # the newest mark may have been lost
        _reach(context, site, reachable=True)
        for engine, (where, attempts) in list(context.sites.cancelled.items()):
            if where == site:
                del context.sites.cancelled[engine]
                endings.cancel(context, engine, attempts, site=site)
        if is_first:  # an earlier coordinator may not have sent what it had decided to send
            for engine in [e for e in context.state.generating if context.site_of(e) == site]:
                dispatch.resend(context, engine)
    if was_away:
        publish(context)


def _reach(context: PlannerContext, site: str, *, reachable: bool) -> None:
    liveness = context.liveness
    for view in liveness.engines.values():
        if view.site == site:
            liveness.load.remove(view)
            view.reachable, view.heartbeats_behind = reachable, 0
            liveness.load.add(view)
            liveness.has_changed(view)


def kept_waiting(context: PlannerContext) -> Collection[str]:
    """Groups of the current step that wait for engines which are away."""
    buffer = context.state.buffers.current
    if buffer is None or not context.sites.away:
        return ()
    return {group_of(sibling.id) for sibling, _ in _waited_for(context, buffer)}


def give_to_others(context: PlannerContext) -> None:
    """Have other engines generate what the current step, or an evaluation, waits for and does not get."""
    if not any(link.away or link.lacks_weights for link in context.sites.links.values()):
        return
    buffer = context.state.buffers.current
    if buffer is not None and context.trainer_waits and _others_admit(context, buffer.min_version):
        for sibling, reason in list(_waited_for(context, buffer)):
            engine, site = sibling.engine, context.site_of(sibling.engine)
            key = sibling.id, sibling.attempt
            context.liveness.free_slot(engine)
            endings.reset_sibling(context, sibling, reason, failure=False, carries=migration.carries(context))
            endings.cancel(context, engine, [key], site=site)
    _give_answers(context)


def _waited_for(context: PlannerContext, buffer: Buffer) -> Iterator[tuple[Sibling, str]]:
    """What of the current step is generated by engines that are away, or cannot be begun; with the reason."""
    awaits_trial, groups = False, buffer.groups(EntryState.RESERVED)
    for group in groups:
        for sibling in context.state.groups[group].siblings:
            if sibling.state is not State.GENERATING:
                awaits_trial = awaits_trial or sibling.id in context.state.quarantined
                continue
            view = context.liveness.engines.get(sibling.engine)
            if context.sites.is_away(context.site_of(sibling.engine)):
                yield sibling, SITE_AWAY
            elif view is not None and view.lacks_weights_for(sibling.min_version):
                yield sibling, AWAITED
    if awaits_trial:  # quarantined cohorts are tried one after the other, of whichever step they are
        for trajectory in context.state.quarantined:
            tried = context.state.sibling(trajectory)
            if tried is None or tried.state is not State.GENERATING or group_of(trajectory) in groups:
                continue
            if context.sites.is_away(context.site_of(tried.engine)):
                yield tried, SITE_AWAY


def _give_answers(context: PlannerContext) -> None:
    """Give held-out answers to others once the evaluation waits for nothing but engines that cannot generate them."""
    run = context.evaluation
    if run.waiting or not _others_admit(context, run.version):
        return
    if not all(_is_cut_off(context, engine, run.version) for engine in set(run.engines.values())):
        return
    for answer, engine in list(run.engines.items()):
        attempt, site = run.attempts[answer], context.site_of(engine)
        context.liveness.free_slot(engine)
        run.retry(answer)
        endings.cancel(context, engine, [(answer, attempt)], site=site)


def _is_cut_off(context: PlannerContext, engine: str, version: int) -> bool:
    """Whether an engine cannot be reached, or has no weights for what needs this version."""
    view = context.liveness.engines.get(engine)
    lacks = view is not None and view.lacks_weights_for(version)
    return lacks or context.sites.is_away(context.site_of(engine))


def _others_admit(context: PlannerContext, min_version: int) -> bool:
    """Whether there are engines that can be reached and may generate what needs these weights."""
    waits = context.swaps_on_its_own
    return any(v.takes_work and v.admits(min_version, waits=waits) for v in context.liveness.engines.values())
