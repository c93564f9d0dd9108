"""What the coordinator's own heartbeats count as they come back: leases, the silence of sites, what seems lost."""

from __future__ import annotations

from collections.abc import Collection

from rljob_core.actions import SiteHeartbeat
from rljob_core.failures import Failure, Reason
from rljob_core.messages import AWAITED, REJECTED
from rljob_core.planner import dispatch, endings, engines, site_marks, sites, training
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.site_links import AWAY_HEARTBEATS

RESEND_HEARTBEATS = 5
"""Own heartbeats for which an engine may hold less, or older weights, than it was sent before that is sent again."""
BACKLOG_HEARTBEATS = 60
"""Own heartbeats before work is sent again to an engine at a site whose outbox is not empty: what is stored there is
no longer held by the engine, and has not arrived yet."""
ANNOUNCE_HEARTBEATS = 30
"""Own heartbeats after which the newest version is announced again, for engines that have not signalled yet."""
REJECTED_HEARTBEATS = 120
"""Own heartbeats for which all engines may reject the newest weights: a file system may show files late."""
HUB = ""
"""The site of engines that are where the coordinator is."""


def on_heartbeat(context: PlannerContext) -> None:
    """The coordinator's own heartbeat came back: leases run on, and what seems lost is sent again.

    An engine that is known from the ledger alone (after a restart) has its whole lease from the first heartbeat on.
    """
    liveness = context.liveness
    for site in sites.count_silence(context):
        _give_up(context, site)
    sites.forget_left(context)
    site_marks.look_for_marks(context)
    _end_leases(context, HUB)
    behind = _send_again(context, HUB)
    _check_rejected_weights(context)
    liveness.heartbeats += 1
    if behind or liveness.heartbeats % ANNOUNCE_HEARTBEATS == 0:
        training.announce(context)


def on_site_heartbeat(context: PlannerContext, beat: SiteHeartbeat) -> None:
    """A heartbeat came back by way of a site: it does for the engines there what the own one does for those here.

    A site that is away counts none. So its engines' leases stand still, also those of engines which a new coordinator
    knows from the ledger alone. A beat that is older than the time that a site is given to answer says nothing of now.
    Several that come at once, as after a stall of one direction, count as one: engines signal once a second.
    """
    site, link = beat.site, context.sites.links.get(beat.site)
    if link is None or beat.age >= AWAY_HEARTBEATS:
        return
    is_counted = link.met and not link.silent
    sites.on_beat(context, site)
    if is_counted:
        return
    site_marks.on_beat(context, site)
    engines.end_losses(context, site)
    here = [v for v in context.liveness.engines.values() if v.site == site]
    for view in here:
        view.awaiting = view.awaiting + 1 if view.stuck == AWAITED else 0
    link.lacks_weights = any(view.awaiting >= AWAY_HEARTBEATS for view in here)
    _end_leases(context, site)
    if _send_again(context, site):
        training.announce(context)


def on_sites_lost(context: PlannerContext, lost: Collection[str]) -> None:
    """Others are given at once what the engines of lost sites hold; a site that is reached is not lost."""
    before, context.sites.lost = context.sites.lost, frozenset(lost)
    for site in sorted(context.sites.lost - before):
        if context.sites.is_away(site):
            _give_up(context, site)


def _give_up(context: PlannerContext, site: str) -> None:
    # If nobody else could generate it, it is kept: what a step waits for is given away as soon as somebody can.
    others = any(view.takes_work for view in context.liveness.engines.values())
    for engine in sites.engines_at(context, site):
        if others or not context.has_work(engine):
            engines.hand_over(context, engine, sites.SITE_AWAY)


def _end_leases(context: PlannerContext, site: str) -> None:
    for engine in sites.engines_at(context, site):
        if engine in context.sites.losses or not context.liveness.lease_ends(engine):
            continue
        if site and engine in context.liveness.leaving:
            # Its last word is behind a backlog, or it gave up storing it.
            engines.lose_drained(context, engine)
        else:
            engines.lose_engine(context, engine, "its heartbeats ended")


def _send_again(context: PlannerContext, site: str) -> bool:
    """Send engines again what they do not seem to have received; whether there are any."""
    behind = [v for v in context.liveness.engines.values() if v.site == site and _is_behind(context, v)]
    for view in behind:
        view.heartbeats_behind = 0
        dispatch.resend(context, view.engine)
    return bool(behind)


def _is_behind(context: PlannerContext, view: EngineView) -> bool:
    """Whether an engine has held less work, or older weights, than it was sent for so long that a message seems lost.

    On a store that loses nothing this happens only by chance, and a message that is sent twice does no harm. An engine
    that awaits weights has the announcement, and so has one that says so.
    """
    waits = view.draining or view.stuck == AWAITED
    lags = max(view.version, view.announced) < context.state.version and not waits
    view.heartbeats_behind = view.heartbeats_behind + 1 if lags or view.held < view.assigned else 0
    stored = bool(view.site) and context.transfers.of(view.site).outbox > 0
    return view.heartbeats_behind > (BACKLOG_HEARTBEATS if stored and not lags else RESEND_HEARTBEATS)


def _check_rejected_weights(context: PlannerContext) -> None:
    """End the job if every engine has rejected the newest weights for long: nothing would ever be generated again.

    Weights that a store does not deliver are another matter: engines wait for the store. So are engines that cannot be
    reached: what they said last may be long ago.
    """
    liveness, version = context.liveness, context.state.version
    views = liveness.engines.values()
    rejected = [v.stuck_detail for v in views if v.version < version and v.reachable and v.stuck == REJECTED]
    by_all = bool(rejected) and len(rejected) == len(views)
    liveness.rejected_heartbeats = liveness.rejected_heartbeats + 1 if by_all else 0
    if liveness.rejected_heartbeats > REJECTED_HEARTBEATS:
        detail = (
            f"no engine can use the weights of version {version}: {rejected[0]}. Going back gives up what came after: "
            f"rljob run … --resume --from-version {version - 1}, or an earlier one"
        )
        endings.finish_job(context, Failure(Reason.WEIGHTS_DAMAGED, detail, from_version=version - 1))
