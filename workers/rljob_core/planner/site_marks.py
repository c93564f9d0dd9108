"""Marks: what a site had stored is here once a mark has come back that was sent by way of the site afterwards.

Heartbeats, events, payloads and progress of a site come in streams of their own. Behind a long cut or on a slow link,
payloads wait for minutes while heartbeats and events pass. So when the coordinator hears that an engine at a site has
died, or has drained, that engine's last results may still be on their way. To declare them lost would have them
generated twice, and would blame for the death what was generated before it.

So before it acts, the coordinator sends a mark by way of the site: one message behind the payloads that the site has
stored, one behind the progress. The loss waits for the former, lookups of progress wait for the latter. One mark is on
its way at a time, and another takes its place after `MARK_HEARTBEATS`, so that a site stores few, however long its
backlog is. A wait ends when the site is away, or after so many beats that a site without marks costs time only.
"""

from __future__ import annotations

from dataclasses import replace

from rljob_core.actions import FindMark, FindProgress, MarkFound, SendMark, SiteMarkSeen
from rljob_core.messages import EngineDied
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.progress_lookups import HeldLookup
from rljob_core.planner.site_links import GRACE_HEARTBEATS, SiteLoss

PROGRESS_HEARTBEATS = 60
"""Beats of a site for which lookups wait for its progress, which is one message for each trajectory."""


def await_results(
    context: PlannerContext,
    engine: str,
    *,
    cause: str = "",
    report: EngineDied | None = None,
    alone: bool = False,
    drained: bool = False,
) -> bool:
    """Whether results of an engine that is lost may be on their way from its site; its loss then waits for them.

    Args:
        context: of the job.
        engine: its instance name.
        cause: see `SiteLoss`, as of what follows.
    """
    site, before = context.site_of(engine), context.sites.losses.get(engine)
    if site not in context.sites.links or not context.has_work(engine):
        return False
    mark, beats = (before.mark, before.beats) if before else (context.sites.links[site].marks.ask(), 0)
    if before is not None:  # what is heard of it later says less
        report, alone, drained = before.report or report, before.alone or alone, before.drained or drained
    context.sites.losses[engine] = SiteLoss(site, mark, cause, report, alone, drained, beats)
    if context.liveness.forget(engine):
        context.metrics.engine_gone(engine)
        context.pool_speeds.forget(engine)
    return True


def losses_over(context: PlannerContext, site: str) -> dict[str, SiteLoss]:
    """The losses at a site, by engine, whose results are all here, or have been waited for long enough."""
    read = context.sites.links[site].marks.read
    return {
        engine: loss
        for engine, loss in context.sites.losses.items()
        if loss.site == site and (loss.mark <= read or loss.beats >= GRACE_HEARTBEATS)
    }


def on_beat(context: PlannerContext, site: str) -> None:
    """A beat of a site came back: what is waited for from there is waited for once more."""
    losses = context.sites.losses
    context.sites.links[site].marks.beats += 1
    for engine, loss in losses.items():
        if loss.site == site:
            losses[engine] = replace(loss, beats=loss.beats + 1)
    for held in context.lookups.held:
        held.beats += held.site == site
    _find(context, [h for h in context.lookups.held if h.beats >= PROGRESS_HEARTBEATS])


def on_mark_seen(context: PlannerContext, seen: SiteMarkSeen) -> None:
    """A mark has come back with the payloads of a site."""
    context.messages.payloads.add(seen.sequence, [])
    if (link := context.sites.links.get(seen.site)) is not None:
        # A site can send what it likes: no number counts that was not sent.
        link.marks.read = max(link.marks.read, min(seen.number, link.marks.sent))
        look_for_marks(context, seen.site)


def look_up_behind_mark(context: PlannerContext, site: str, mark: int, wanted: dict[str, int]) -> None:
    """Look up the progress of trajectories that a site was generating, once all of it is here.

    Args:
        context: of the job.
        site: its name; empty if nothing is on its way.
        mark: number of the mark behind the progress; 0 if that is still to be sent.
        wanted: the trajectories, each with the attempt that waits.
    """
    if not site or not context.sites.reaches(site):  # what is here is all that comes for now
        context.act(FindProgress(tuple(wanted), tuple(wanted.values())))
        return
    marks = context.sites.links[site].marks
    held = HeldLookup(site, mark or marks.ask(), wanted)
    context.lookups.held.append(held)
    if held.mark <= marks.found:
        _find(context, [held])
    else:
        look_for_marks(context, site)


def look_for_marks(context: PlannerContext, *sites: str) -> None:
    """Ask whether the marks have come back with progress: nobody reads that stream, and the next mark waits for it.

    Args:
        context: of the job.
        sites: whose marks; all, if none is named.
    """
    for site in _waited_for(context):
        marks = context.sites.links[site].marks
        # One that is still to be sent is not there.
        if site in (sites or (site,)) and marks.found < marks.sent:
            context.act(FindMark(site))


def on_mark_found(context: PlannerContext, found: MarkFound) -> None:
    """A mark has come back with the progress of a site: that is looked up now which waited for it."""
    if (link := context.sites.links.get(found.site)) is None:
        return
    marks = link.marks
    marks.found = max(marks.found, min(found.number, marks.sent))
    _find(context, [h for h in context.lookups.held if h.site == found.site and h.mark <= marks.found])


def on_away(context: PlannerContext, site: str) -> None:
    """A site is away: lookups make do with the progress that is here."""
    _find(context, [held for held in context.lookups.held if held.site == site])


def _waited_for(context: PlannerContext) -> list[str]:
    """The sites whose marks something waits for."""
    lookups = (held.site for held in context.lookups.held)
    return list(dict.fromkeys((*lookups, *(loss.site for loss in context.sites.losses.values()))))


def _find(context: PlannerContext, over: list[HeldLookup]) -> None:
    for held in over:
        context.lookups.held.remove(held)
        context.act(FindProgress(tuple(held.wanted), tuple(held.wanted.values())))


def send_marks(context: PlannerContext) -> None:
    """Send the marks that something waits for."""
    for site in sorted(_waited_for(context)):
        link = context.sites.links[site]
        if link.reached and link.marks.is_due:
            context.act(SendMark(site, link.marks.next()))
