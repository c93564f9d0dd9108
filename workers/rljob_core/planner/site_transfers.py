"""What the planner knows of the transfers between each site and the hub: links, backlogs, and when weights arrive.

Links are the job's configuration's; all else is observed. Engines at a site say in their signals how much their server
has stored that the hub has not taken, its *outbox*. A site gets no new work while its outbox is half full or takes
the link long, and gets it again once half of that is gone; nor does it get more than its outbox would hold if every
answer there became as long as it may. So engines never wait for an outbox that is full.

When the newest weights will be at a site is told by how long earlier ones took: from their commit to the first signal
of an engine that has them. Nothing of this is in the ledger: a new coordinator learns it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rljob_core.messages import EngineSignal
from rljob_core.planner.engine_choice import EngineView
from rljob_core.site_costs import LinkCosts
from rljob_core.spec import SiteLinkSpec

HELD_SHARE, HELD_SECONDS = 0.5, 30.0
"""Of its limit, and of the link's time, that an outbox takes when its site gets no new work any more."""
RESUMED = 0.5
"""Share of both below which it gets work again."""
SAID_SECONDS = 6.0
"""Within which every engine says how much its site's outbox has: each asks every 5 s, and signals every second."""
_RECOUNT_SECONDS = 1.0
_KEPT_COMMITS = 16


@dataclass(slots=True)
class SiteTransfer:
    """One site.

    Attributes:
        costs: of its link.
        version: the newest that one of its engines has.
        lag: seconds that this version took from its commit to such an engine; 0 until one has come.
        outbox: bytes that its server has stored for the hub: the most that an engine has said in the last seconds. What
            one has read seconds before another one would otherwise hold the site back, and release it, by turns.
        limit: bytes that it may store; 0 if there is no limit, or nobody has said it.
        under_way: bytes that what its engines have may take at most.
        held_back: whether it gets no new work, because of its outbox.
    """

    costs: LinkCosts
    version: int = -1
    lag: float = 0.0
    outbox: int = 0
    limit: int = 0
    under_way: float = 0.0
    held_back: bool = False
    _said: tuple[int, int] = (0, 0)
    _since: float = float("-inf")
    _heard: float = float("-inf")

    def hear(self, outbox: int, limit: int, now: float) -> None:
        """Take what an engine says of the outbox: of the last `SAID_SECONDS`, and those before, the most counts."""
        before, newest = self._said
        if now - self._since >= SAID_SECONDS:
            before, newest = (newest if now - self._since < 2 * SAID_SECONDS else 0), 0
            self._since = now
        self._said, self._heard = (before, max(newest, outbox)), now
        self.outbox, self.limit = max(self._said), limit

    def forget(self, now: float) -> None:
        """Take the outbox for empty once no engine has said anything of it for long: none can read it.

        What was said last would otherwise hold the site back until somebody says less, which may be never.
        """
        if now - self._heard >= 2 * SAID_SECONDS:
            self.outbox, self._said = 0, (0, 0)

    def takes(self, size: float) -> bool:
        """Whether what an engine here may make of one trajectory has room in the outbox, whatever else comes."""
        if self.held_back:
            return False
        fits = not self.limit or self.outbox + self.under_way + size <= self.limit
        return fits or not (self.outbox or self.under_way)  # else nothing would ever be generated here

    def judge(self) -> bool:
        """Hold the site back, or no longer; whether that has changed."""
        before, share = self.held_back, RESUMED if self.held_back else 1.0
        full = bool(self.limit) and self.outbox >= share * HELD_SHARE * self.limit
        self.held_back = full or self.costs.seconds(self.outbox) >= share * HELD_SECONDS
        return self.held_back != before


@dataclass(slots=True)
class SiteTransfers:
    """All sites of a job.

    Args:
        links: by site.

    Attributes:
        sites: those of which an engine has signalled.
        largest: bytes that one answer may take.
        typical: tokens that an answer is expected to have.
    """

    links: Mapping[str, SiteLinkSpec]
    sites: dict[str, SiteTransfer] = field(default_factory=dict)
    largest: float = 0.0
    typical: float = 1.0
    _commits: dict[int, float] = field(default_factory=dict)
    """When the newest versions were committed, by this coordinator's clock."""
    _recounted: float = float("-inf")

    def of(self, site: str) -> SiteTransfer:
        """A site; the hub is none."""
        found = self.sites.get(site)
        if found is None:
            found = self.sites[site] = SiteTransfer(LinkCosts.of(self.links.get(site)))
        return found

    def committed(self, version: int, now: float) -> None:
        """A version was committed; those after it, if there were any, are revoked."""
        kept = range(version - _KEPT_COMMITS, version)
        self._commits = {known: at for known, at in self._commits.items() if known in kept}
        self._commits[version] = now

    def heard(self, view: EngineView, signal: EngineSignal, now: float) -> bool:
        """Take the signal of an engine; whether its site gets no work any more, or gets it again."""
        if not view.site:
            return False
        site = self.of(view.site)
        if signal.version > site.version:
            if (committed := self._commits.get(signal.version)) is not None:
                site.lag = max(now - committed, 0.0)
            site.version = signal.version
        if signal.outbox_limit or signal.outbox_bytes:
            site.hear(max(signal.outbox_bytes, 0), max(signal.outbox_limit, 0), now)
        site.forget(now)
        return site.judge()

    def wait(self, site: str, now: float) -> float:
        """Seconds after which the newest weights are expected at a site; 0 if they are there.

        What is late already is expected to take as long again.
        """
        found, newest = self.of(site), max(self._commits, default=-1)
        if newest <= found.version:
            return 0.0
        elapsed = max(now - self._commits[newest], 0.0)
        return max(found.lag, 2 * elapsed) - elapsed

    def is_due(self, now: float) -> bool:
        """Whether what engines have is to be counted again."""
        return bool(self.sites) and now >= self._recounted + _RECOUNT_SECONDS

    def recount(self, engines: Iterable[EngineView], now: float, *, largest: float, typical: float) -> None:
        """Count what engines have.

        Args:
            largest: bytes that each of it may take.
            typical: tokens that an answer is expected to have.
        """
        self._recounted, self.largest, self.typical = now, largest, typical
        for site in self.sites.values():
            site.under_way = 0.0
        for view in engines:
            if view.site:
                self.of(view.site).under_way += view.assigned * largest

    @property
    def full(self) -> set[str]:
        """The sites that take no trajectory now; see `SiteTransfer.takes`."""
        return {name for name, site in self.sites.items() if not site.takes(self.largest)}

    def sent(self, site: str) -> None:
        """A trajectory was sent there."""
        if site in self.sites:
            self.sites[site].under_way += self.largest

    @property
    def held_back(self) -> tuple[str, ...]:
        """The sites that get no new work because of their outboxes."""
        return tuple(sorted(name for name, site in self.sites.items() if site.held_back))
