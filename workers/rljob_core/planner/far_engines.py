"""What the work of an engine at a site is worth: its answers come later, cost something, or wait for weights.

An engine at the hub adds tokens per second (`EngineView.gain`). At a site, the same engine adds the share of them that
`share` says: of the time from the decision until the answer is at the hub, that in which tokens are made; and of what a
token costs, that which the engine costs. So near engines come first where both are as fast, by the more, the shorter
an answer is, and an engine that would have to wait for its weights comes last.

Where more waits than the engines at the hub have slots for, all engines are used in any case, and the question is
only who takes what: then an answer is compared with a typical one. Those that are expected to be longer go to far
engines, where they lose least by it, and shorter ones to near engines.

Where all engines are at the hub, every share is 1, and nothing is decided otherwise.
"""

from __future__ import annotations

from math import isfinite
from statistics import fmean

from rljob_core.lengths.quality import LEAST_CORRELATION
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.site_transfers import SiteTransfer
from rljob_core.site_costs import answer_bytes
from rljob_core.streams_budget import payload_bytes
from rljob_core.trajectory import group_of, prompt_of_group

_LEAST_SHARE = 1e-9
_HOUR = 3600.0


class FarEngines:
    """The shares of engines, in one round of dispatch.

    Args:
        crowded: whether more waits than engines at the hub have slots for.
    """

    def __init__(self, context: PlannerContext, *, crowded: bool) -> None:
        self._context, self._crowded = context, crowded
        pools = context.spec.rollout.pools
        self._prices = {p.name: float(p.cost_per_hour) for p in pools if p.cost_per_hour is not None}
        """What an engine of each pool costs in an hour, of those that have a price."""

    def share(self, engine: EngineView, prompt: int | None, min_version: int) -> float:
        """Of an engine's worth, what is left for an answer to a prompt that needs these weights; more than 0.

        Args:
            prompt: its number; None for an answer whose length nobody knows.
        """
        if not engine.site or engine.profile is None:
            return 1.0
        answer = expected_tokens(self._context, prompt)
        found = self._share(engine, answer, min_version)
        if self._crowded:
            found /= self._share(engine, self._context.transfers.typical, min_version)
        return found

    def _share(self, engine: EngineView, answer: float, min_version: int) -> float:
        context, site = self._context, self._context.transfers.of(engine.site)
        making = answer * engine.step_seconds(answer, more=1)
        moving = transfer_seconds(site, answer)
        wait = context.transfers.wait(engine.site, context.now)
        if engine.version < min_version or wait <= making:  # see `awaits_newest`
            moving += wait
        total = making + moving
        by_time = making / total if 0 < making < total else 1.0
        return max(by_time * self._by_price(engine, site, answer), _LEAST_SHARE)

    def _by_price(self, engine: EngineView, site: SiteTransfer, answer: float) -> float:
        """Of what a token costs, the share that its engine costs, with all its slots taken; 1 without prices."""
        hourly, moved = self._prices.get(engine.pool, 0.0), site.costs.price * answer_bytes(answer) / answer
        if engine.profile is None or hourly <= 0 or moved <= 0:
            return 1.0
        step = engine.profile.step(batch=engine.slots, context=engine.slots * answer)
        made = max(hourly / _HOUR * step / engine.slots, 0.0)
        return made / (made + moved) if isfinite(made) else 1.0


def awaits_newest(context: PlannerContext, engine: EngineView, trajectory: str) -> bool:
    """Whether an engine is to begin a trajectory under the newest weights, though its own would do.

    What begins under newer weights keeps its group more room to move to a later step. At a site they may come late:
    then an answer is begun at once if the engine would wait for longer than it takes.
    """
    if not engine.site or engine.profile is None:
        return True
    answer = expected_tokens(context, prompt_of_group(group_of(trajectory)))
    making = answer * engine.step_seconds(answer, more=1)
    return context.transfers.wait(engine.site, context.now) <= making


def expected_tokens(context: PlannerContext, prompt: int | None) -> float:
    """How many tokens an answer to a prompt is expected to have: as all answers, if its length is not known."""
    lengths, typical = context.lengths, context.transfers.typical
    estimate = lengths.known.get(prompt) if prompt is not None else None
    if estimate is None or lengths.correlation < LEAST_CORRELATION:
        return typical
    return max(min(estimate.mean, context.spec.rollout.sampling.max_tokens), 1.0)


def transfer_seconds(site: SiteTransfer, answer: float) -> float:
    """Seconds that the link adds to an answer of so many tokens, behind what is stored there already."""
    return 2 * site.costs.latency + site.costs.seconds(site.outbox + answer_bytes(answer))


def recount(context: PlannerContext) -> None:
    """Once a second, count what the engines of sites have, and how long answers are expected to be."""
    transfers, room = context.transfers, context.room
    if not transfers.is_due(context.now):
        return
    most = context.spec.rollout.sampling.max_tokens
    transfers.recount(
        context.liveness.engines.values(),
        context.now,
        largest=payload_bytes(prompt_tokens=max(room.prompts.values(), default=0), response_tokens=most),
        typical=_typical_tokens(context, most),
    )


def _typical_tokens(context: PlannerContext, most: int) -> float:
    known, running = context.lengths.known, context.liveness.load.mean_tokens
    if known and context.lengths.correlation >= LEAST_CORRELATION:
        return max(fmean(min(estimate.mean, most) for estimate in known.values()), 1.0)
    return max(min(running or most / 2, most), 1.0)
