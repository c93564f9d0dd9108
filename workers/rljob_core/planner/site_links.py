"""Which sites can be reached, as far as this coordinator has heard, and what is waited for from there.

By way of each site the coordinator sends itself a heartbeat, a *beat*. It comes back in order with what the site's
engines have signalled before, so a beat that has come back proves both directions of the link. Whatever is counted for
a site counts its beats, or the coordinator's own heartbeats, and no seconds: a coordinator that was frozen counts none.
Beats overtake what waits behind a backlog; marks do not (`site_marks`). Nothing of this is in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_core.messages import EngineDied
from rljob_core.planner.stored_messages import AttemptKey
from rljob_core.spec import GRACE_SECONDS

AWAY_HEARTBEATS = 10
"""Own heartbeats without a beat after which a site is away."""
GRACE_HEARTBEATS = GRACE_SECONDS
"""Own heartbeats for which the work of a site that is away is kept for it, unless its Site says more seconds."""
MOST_SITES = 128
"""Sites that are watched at once: twice as many as pools may name. An engine may claim to be anywhere."""
MARK_HEARTBEATS = 30
"""Beats of a site after which another mark is sent in place of one that has not come back."""


@dataclass(slots=True)
class SiteMarks:
    """The marks that were sent by way of one site, numbered from 1; one at a time is on its way.

    Attributes:
        sent: number of the newest.
        wanted: number of the newest that something waits for; if it is greater than `sent`, it is still to be sent.
        read: number of the newest that came back with payloads.
        found: number of the newest that came back with progress.
        beats: that have come back since the newest was sent.
    """

    sent: int = 0
    wanted: int = 0
    read: int = 0
    found: int = 0
    beats: int = 0

    def ask(self) -> int:
        """Want a mark that is sent from now on; its number."""
        self.wanted = self.sent + 1
        return self.wanted

    @property
    def is_due(self) -> bool:
        """Whether the next one is to be sent: the one before has come back, or seems lost."""
        is_back = min(self.read, self.found) >= self.sent
        return (self.wanted > self.sent and is_back) or self.beats >= MARK_HEARTBEATS

    def next(self) -> int:
        """Number of the mark that is sent now."""
        self.sent, self.beats = self.sent + 1, 0
        return self.sent


@dataclass(slots=True)
class SiteLink:
    """What is known of the link to one site.

    Attributes:
        silent: own heartbeats since its last beat, or since this coordinator began.
        reached: whether a beat has come back since it was last away, so that its engines may be sent work.
        lacks_weights: whether an engine there has awaited weights for long.
        met: whether a beat has ever come back to this coordinator.
        marks: that were sent by way of the site.
    """

    silent: int = 0
    reached: bool = False
    lacks_weights: bool = False
    met: bool = False
    marks: SiteMarks = field(default_factory=SiteMarks)

    @property
    def away(self) -> bool:
        """Whether the site cannot be reached, and has been given the time to answer."""
        return self.silent >= AWAY_HEARTBEATS


@dataclass(frozen=True, slots=True)
class SiteLoss:
    """An engine at a site that has died or drained, while its last results may be on their way.

    Attributes:
        site: where it was.
        mark: number of the mark behind its results.
        cause: what is known of its end, for people.
        report: of the process that watched the engine, if there is one.
        alone: see `Liveness.ended_alone`.
        drained: whether it has drained, and has not died.
        beats: of the site that have come back since.
    """

    site: str
    mark: int
    cause: str = ""
    report: EngineDied | None = None
    alone: bool = False
    drained: bool = False
    beats: int = 0


@dataclass(slots=True)
class SiteLinks:
    """The links to all sites of a job. The hub, where the coordinator is, is no site: its name is "".

    Attributes:
        grace: by site, own heartbeats for which its work is kept, where these are more than `GRACE_HEARTBEATS`.
        links: by site.
        cancelled: by engine, its site and the attempts there that are to be cancelled once the site is reached.
        losses: by engine, those whose last results are waited for.
        lost: sites whose work is not kept for them while they are away, because somebody says that they are lost.
        numbered: highest number of a mark by way of a site that was forgotten: it may still come back.
    """

    grace: Mapping[str, int] = field(default_factory=dict)
    links: dict[str, SiteLink] = field(default_factory=dict)
    cancelled: dict[str, tuple[str, list[AttemptKey]]] = field(default_factory=dict)
    losses: dict[str, SiteLoss] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    numbered: int = 0

    def meet(self, *sites: str) -> None:
        """Watch the links to sites from now on; these stay known while engines may live on there."""
        before = self.numbered
        for site in sites:
            if site and site not in self.links:
                marks = SiteMarks(sent=before, wanted=before, read=before, found=before)
                self.links[site] = SiteLink(marks=marks)

    def may_meet(self, site: str) -> bool:
        """Whether an engine may be there that says so: at the hub, at a site that is known, or at one of a few more."""
        return not site or site in self.links or len(self.links) < MOST_SITES

    def forget(self, site: str) -> None:
        """Watch the link to a site no longer."""
        self.numbered = max(self.numbered, self.links.pop(site).marks.sent)
        self.cancelled = {e: held for e, held in self.cancelled.items() if held[0] != site}

    def reaches(self, site: str) -> bool:
        """Whether what is sent to a site can be expected to arrive."""
        return not site or (site in self.links and self.links[site].reached)

    def kept(self, site: str) -> int:
        """Own heartbeats without a beat after which the work of a site is kept for it no longer."""
        return AWAY_HEARTBEATS + max(self.grace.get(site, 0), GRACE_HEARTBEATS)

    def is_away(self, site: str) -> bool:
        """Whether a site is away."""
        return site in self.links and self.links[site].away

    @property
    def away(self) -> tuple[str, ...]:
        """The sites that are away."""
        return tuple(sorted(site for site, link in self.links.items() if link.away))

    def cancel_later(self, engine: str, site: str, attempts: list[AttemptKey]) -> None:
        """Remember attempts that an engine is to stop generating once its site is reached."""
        _, before = self.cancelled.setdefault(engine, (site, []))
        before += attempts

    def pop_cancelled(self, engine: str) -> list[AttemptKey]:
        """What was to be cancelled at an engine; it is no longer."""
        return self.cancelled.pop(engine, ("", []))[1]
