"""The condition `SitesHeldBack`: sites that get no new work, and why.

Back-pressure acts before a site's outbox is full: engines there would stand still with results that they cannot store.
"""

from __future__ import annotations

from typing import Final

from rljob_operator.decisions.conditions import ConditionValue
from rljob_operator.decisions.job_metrics import JobMetrics

HELD_BACK: Final = "SitesHeldBack"


def sites_held_back(metrics: JobMetrics) -> ConditionValue:
    """The value of the condition; a site that cannot be reached counts as well."""
    away, full = (
        metrics.sites_away,
        tuple(site for site in metrics.sites_held if site not in metrics.sites_away),
    )
    said = []
    if away:
        said.append(f"{_named(away)} cannot be reached")
    if full:
        said.append(
            f"the link of {_named(full)} carries less than the engines there make: results wait in its outbox"
        )
    if not said:
        return False, "SitesTakeWork", ""
    return True, "SiteAway" if away else "OutboxFilling", f"{'; '.join(said)}; no new work is sent there"


def _named(sites: tuple[str, ...]) -> str:
    """The first few: a condition is read by people."""
    more = len(sites) - 5
    return ", ".join(sites[:5]) + (f" and {more} more" if more > 0 else "")
