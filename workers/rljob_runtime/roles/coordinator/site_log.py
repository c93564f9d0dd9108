"""Says in the coordinator's log when a site is away, or gets no work, and when that is over."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rljob_core.messages import StepMetrics

log = logging.getLogger(__name__)


class SiteLog:
    """What was said last of each site."""

    def __init__(self) -> None:
        self._away: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()

    def take(self, metrics: StepMetrics) -> None:
        """Say what has changed."""
        for site, is_away in _changes(self._away, metrics.sites_away):
            if is_away:
                log.warning("site %s is away: its engines get no work until it is reached again", site)
            else:
                log.info("site %s is reached again: its engines go on", site)
        for site, is_held in _changes(self._held, metrics.sites_held):
            if is_held:
                log.warning(
                    "site %s gets no new work: its outbox fills faster than its link empties it", site
                )
            else:
                log.info("site %s gets work again: half of its outbox has arrived", site)
        self._away, self._held = frozenset(metrics.sites_away), frozenset(metrics.sites_held)


def _changes(before: frozenset[str], after: Sequence[str]) -> list[tuple[str, bool]]:
    """The sites that are on one of the lists only, and whether that is the second."""
    return [(site, site not in before) for site in sorted(before.symmetric_difference(after))]
