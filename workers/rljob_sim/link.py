"""The simulated links between sites and the hub: payloads go up one after the other, versions come down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rljob_core.messages import EngineSignal
from rljob_core.site_costs import LinkCosts
from rljob_core.streams_budget import payload_bytes, trajectory_stream_bytes
from rljob_sim.clock import DueAction, VirtualClock
from rljob_sim.report import LinkUse
from rljob_sim.scenario import Scenario


class SimulatedLink:
    """One link, which is never cut.

    Messages without a size, such as work and signals, take its latency. Payloads go up in order, at the rate that a
    stream has of it. So do versions come down, of which those are passed over that are not the newest when the link
    becomes free.

    Args:
        costs: of the link.
        version_bytes: of each version of the weights.
        arrived: called with a version, when it is at the site.

    Attributes:
        outbox: bytes that the site has stored and the hub has not taken.
        limit: bytes that it may store.
        moved: bytes that have passed, both ways.
        most: bytes that the outbox held at most.
        trajectories: that were stored there.
    """

    def __init__(
        self,
        clock: VirtualClock,
        costs: LinkCosts,
        *,
        limit: int,
        version_bytes: float,
        arrived: Callable[[int], None],
    ) -> None:
        self.costs, self.limit = costs, limit
        self.outbox = self.moved = self.most = 0.0
        self._clock, self._version_bytes, self._arrived = clock, version_bytes, arrived
        self.trajectories = 0
        self._up = 0.0
        self._newest = self._coming = 0

    def message(self, action: DueAction) -> None:
        """Have something happen at the other end."""
        self._clock.after(self.costs.latency, action)

    def payload(self, size: float, action: DueAction) -> None:
        """Store a payload at the site; `action` is what happens when it is at the hub."""
        self.outbox += size
        self.most = max(self.most, self.outbox)
        self._up = max(self._up, self._clock.now) + self.costs.seconds(size)

        def taken() -> None:
            self.outbox -= size
            self.moved += size
            action()

        self._clock.at(self._up + self.costs.latency, taken)

    def announce(self, version: int) -> None:
        """A version is there to be fetched."""
        self._newest = max(self._newest, version)
        if not self._coming and version == self._newest:
            self._fetch()

    def _fetch(self) -> None:
        version = self._coming = self._newest

        def there() -> None:
            self.moved += self._version_bytes
            self._coming = 0
            self._arrived(version)
            if self._newest > version:
                self._fetch()

        self._clock.after(self.costs.latency + self.costs.seconds(self._version_bytes), there)


class SimulatedLinks:
    """The links of all sites that a scenario has engines at.

    Args:
        arrived: called with a site and a version, when that is there.
    """

    def __init__(
        self, clock: VirtualClock, scenario: Scenario, *, arrived: Callable[[str, int], None]
    ) -> None:
        spec = scenario.config.spec
        self._every, self._prompt_tokens = spec.rollout.progress_tokens, scenario.prompt_tokens
        self._links = {
            site: SimulatedLink(
                clock,
                LinkCosts.of(scenario.config.links.get(site)),
                limit=trajectory_stream_bytes(spec),
                version_bytes=scenario.trainer.version_bytes,
                arrived=partial(arrived, site),
            )
            for site in sorted({kind.site for kind in scenario.engines if kind.site})
        }

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites, without the hub."""
        return tuple(self._links)

    def carry(self, site: str, action: DueAction) -> None:
        """Have something happen at the other end of a site's link; at the hub, now."""
        if link := self._links.get(site):
            link.message(action)
        else:
            action()

    def announce(self, version: int) -> None:
        """A version can be fetched by every site."""
        for link in self._links.values():
            link.announce(version)

    def payload(self, site: str, tokens: int, action: DueAction) -> None:
        """Carry an answer of so many tokens to the hub, behind the progress that was published of it."""
        link, parts = self._links[site], range(self._every, tokens, self._every) if self._every else ()
        link.trajectories += 1
        link.payload(sum(map(self._bytes, (*parts, tokens))), action)

    def progress(self, site: str, tokens: int, action: DueAction) -> None:
        """Carry the progress of a trajectory to the hub."""
        if link := self._links.get(site):
            link.payload(self._bytes(tokens), action)
        else:
            action()

    def with_outbox(self, site: str, signal: EngineSignal) -> EngineSignal:
        """The signal of an engine with what its site has stored for the hub, and may store."""
        if (link := self._links.get(site)) is None:
            return signal
        return replace(signal, outbox_bytes=round(link.outbox), outbox_limit=link.limit)

    def used(self) -> dict[str, LinkUse]:
        """What each link has carried."""
        return {
            site: LinkUse(link.moved, link.moved * link.costs.price, link.most, link.trajectories)
            for site, link in self._links.items()
        }

    def _bytes(self, tokens: int) -> int:
        return payload_bytes(prompt_tokens=self._prompt_tokens, response_tokens=tokens)
