"""Whether what says that it is a site is the site, and of a release that this operator can work with."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime

from rljob_operator.decisions.site_reports import SILENT

_SKEW = 1
"""Minor versions that may lie between the operators of hub and site."""


@dataclass(frozen=True, slots=True)
class SiteClaim:
    """Which NATS server is the site's, if several say so: the one that was first, until it is silent.

    Attributes:
        created: when the stream of its bucket was created, by which servers differ; empty if none has said so yet.
        heard: when it said so last, by the hub's clock.
        contested: when another one said so last.
    """

    created: str = ""
    heard: datetime | None = None
    contested: datetime | None = None

    def after(self, created: str, now: datetime) -> SiteClaim:
        """The claim once somebody has said hello; a hello that cannot be read does not say which server it has."""
        if not created or created == self.created:
            return replace(self, heard=now)
        if self.created and self.heard is not None and now - self.heard <= SILENT:
            return replace(self, contested=now)
        return SiteClaim(created, now, self.contested)

    def is_contested(self, now: datetime) -> bool:
        """Whether two say so."""
        return self.contested is not None and now - self.contested <= SILENT


def releases_fit(one: str, other: str) -> bool:
    """Whether the operators of hub and site may be of these releases; an empty one is not known, and may be any."""
    first, second = _minor(one), _minor(other)
    if first is None or second is None:
        return True
    return first[0] == second[0] and abs(first[1] - second[1]) <= _SKEW


def unfit_releases(*, hub: str, site: str) -> str:
    """What is wrong with two releases that do not fit, and what to do."""
    return (
        f"the hub's operator is of release {hub}, the site's of {site}: at most one minor version may lie between "
        "them; upgrade the older one"
    )


def _minor(release: str) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?!\d)", release)
    return None if found is None else (int(found[1]), int(found[2]))
