"""What the operator of a site reports of its pools to the hub, and what the hub's operator makes of it.

A site is *heard* while its reports and beats arrive, by the hub's clock alone: the clocks of two sites may be hours
apart. What it reported last stays in the status of its RolloutPools for the Site's grace; after that nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rljob_core.spec import SILENT_SECONDS
from rljob_operator.cluster.port import Event, Manifest
from rljob_operator.decisions.site_documents import PoolDocument, SiteMessage

SILENT = timedelta(seconds=SILENT_SECONDS)
"""After which a site is not connected any more: several times what lies between its beats, and a reconnect takes."""

_DIFFER = timedelta(seconds=15)
"""For which the two sides of a bucket may differ: more than messages take after a cut has ended."""


EVENTS = 8
"""Of a pool in its report."""
NODES = "nodes"
_MOST_RESOURCES = 31
"""In a report, besides the number of nodes."""
_MOST = (1 << 53) - 1
"""Of any number in a beat."""

# As the API server takes them: a status that it refuses would keep the job of that pool from being reconciled.
_Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=256)]
_Resource = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$", max_length=317)
]  # as Kubernetes names resources: 253 characters, a slash, 63 characters
_Replicas = Annotated[int, Field(ge=0, le=10_000)]


class ReportedCondition(SiteMessage):
    """A condition of a RolloutPool at its site."""

    type: _Word
    status: Literal["True", "False", "Unknown"]
    reason: _Word
    message: Annotated[str, Field(max_length=32_768)] = ""


class ReportedEvent(SiteMessage):
    """What keeps some of a pool's pods from running at its site."""

    reason: _Word
    message: Annotated[str, Field(max_length=1_024)] = ""


class PoolReport(SiteMessage):
    """The status of a RolloutPool at its site.

    Attributes:
        uid: of the hub's RolloutPool.
        generation: of the hub's RolloutPool, which the site has applied.
        replicas, ready_replicas: pods, and engines that serve.
        conditions: of the site's RolloutPool.
        wanted: engines that the site's RolloutPool is scaled to, if it is scaled there; else None.
        events: what keeps pods from running there.
    """

    uid: str
    generation: Annotated[int, Field(ge=0, lt=1 << 53)]
    replicas: _Replicas = 0
    ready_replicas: _Replicas = 0
    conditions: Annotated[tuple[ReportedCondition, ...], Field(max_length=16)] = ()
    wanted: _Replicas | None = None
    events: Annotated[tuple[ReportedEvent, ...], Field(max_length=EVENTS)] = ()


class SiteBeat(SiteMessage):
    """What a site's operator says every few seconds, so that the hub knows that it is there.

    Attributes:
        number: another one each time.
        pools: identifies what it has read of the hub; empty if it has read nothing.
        hub_heard: when it heard the hub last, in seconds since 1970 by its own clock, for an operator that starts; 0 if
            never.
        pools_last: the newest sequence of that; 0 if it has read nothing.
        reports: identifies what it has written besides beats.
        outbox_bytes: that the site has stored for the hub.
        mirror_lag: messages of the hub that it lacks.
        capacity: nodes of the site that take pods, and what they have of resources that devices give, such as
            nvidia.com/gpu; empty if the site's operator may not read nodes.
    """

    number: int
    pools: str = ""
    pools_last: int = 0
    hub_heard: float = 0.0
    reports: str = ""
    outbox_bytes: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    mirror_lag: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    capacity: Annotated[dict[_Resource, Annotated[int, Field(ge=0, lt=1 << 53)]], Field(max_length=32)] = (
        Field(default={})
    )


@dataclass(frozen=True, slots=True)
class SitePool:
    """What the hub knows of a pool at a site.

    Attributes:
        site: its name.
        report: the newest; None if there is none.
        away: for how long the site has been silent, if that is longer than its grace; else None.
        trouble: reason and message why the hub does not talk to the site, or the job's streams do not cross; or None.
        lost: why the site counts as lost; empty if it does not.
    """

    site: str
    report: PoolReport | None = None
    away: timedelta | None = None
    trouble: tuple[str, str] | None = None
    lost: str = ""

    @property
    def is_unheard(self) -> bool:
        """Whether nobody knows what the pool's engines do."""
        return self.away is not None or self.trouble is not None or bool(self.lost)

    def wanted(self, uid: str) -> int | None:
        """Engines that the pool is scaled to at the site; None if that is not known, or not done there."""
        return self.report.wanted if self.report is not None and self.report.uid == uid else None

    def counts(self, uid: str) -> dict[str, int]:
        """The counts of the hub's RolloutPool with that uid, as its status has them."""
        report = (
            self.report
            if self.report is not None and self.report.uid == uid
            else PoolReport(uid=uid, generation=0)
        )
        return {
            "observedGeneration": report.generation,
            "replicas": 0 if self.lost else report.replicas,
            "readyReplicas": 0 if self.lost else report.ready_replicas,
        }

    def facts(self, generation: int, uid: str) -> tuple[str, str, str]:
        """Status, reason and message of the condition `Ready` of the hub's RolloutPool."""
        if self.lost:
            return (
                "False",
                "SiteLost",
                f"Site {self.site} {self.lost}: its engines count for nothing until it is heard",
            )
        if self.trouble is not None:
            return "Unknown", *self.trouble
        if self.away is not None:
            silent = int(self.away.total_seconds())
            return (
                "Unknown",
                "SiteAway",
                f"Site {self.site} has not been heard for {silent} s; its engines may serve",
            )
        if self.report is None or self.report.uid != uid:
            return "Unknown", "SitePending", f"Site {self.site} has not reported this pool yet"
        if self.report.generation != generation:
            return "False", "SitePending", f"Site {self.site} has not reported the pool's newest spec yet"
        found = next((c for c in self.report.conditions if c.type == "Ready"), None)
        if found is None:
            return "Unknown", "SitePending", f"Site {self.site} does not say whether its engines serve"
        message = f"Site {self.site}: {found.message}" if found.message else ""
        return found.status, found.reason, message


@dataclass(frozen=True, slots=True)
class SiteContact:
    """When a site was last heard, by the hub's clock.

    Attributes:
        since: when this operator began to look; if an earlier one had found the site silent, when that had heard it.
        beat: the newest; None if there is none.
        heard: when it changed; None if it was not seen to change since this operator began to look.
    """

    since: datetime
    beat: SiteBeat | None = None
    heard: datetime | None = None

    @classmethod
    def known_from(cls, status: Mapping[str, Any], now: datetime) -> SiteContact:
        """What an operator that starts knows of a site, by the status of its Site."""
        last = status.get("lastBeat")
        if status.get("connected", True) or last is None:
            return cls(now)
        return cls(min(datetime.fromisoformat(last), now))

    def after(self, beat: SiteBeat | None, now: datetime) -> SiteContact:
        """The contact once a beat was read: one that was there from the beginning may be old."""
        if beat is None or beat == self.beat:
            return self
        heard = now if self.beat is not None else self.heard
        return SiteContact(self.since, beat, heard)

    def silent(self, now: datetime) -> timedelta:
        """For how long the site has been silent, as far as this operator can know."""
        return now - (self.heard or self.since)

    def away(self, now: datetime, grace: timedelta) -> timedelta | None:
        """For how long the site has been silent, if that is longer than its grace and than `SILENT`; else None."""
        silent = self.silent(now)
        return silent if silent > max(grace, SILENT) else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether both sides have the same in one bucket.

    A server that is killed may lose messages that the other one counts as delivered; then the two never agree by
    themselves, and no error says so.

    Attributes:
        agrees: whether they had the same when they were compared last; None if they were not compared yet.
        since: when they began to differ.
    """

    agrees: bool | None = None
    since: datetime | None = None

    def after(self, agrees: bool, now: datetime) -> Agreement:
        """The agreement after another comparison."""
        return Agreement(True) if agrees else Agreement(False, self.since or now)

    def broken(self, now: datetime) -> bool:
        """Whether they have differed for longer than messages take."""
        return self.since is not None and now - self.since > _DIFFER


def new_events(
    site: str, document: PoolDocument, before: PoolReport | None, after: PoolReport | None
) -> list[Event]:
    """The events of a pool's pods at a site that its newest report has and the one before had not, by their reasons."""
    if after is None:
        return []
    known = set() if before is None else {event.reason for event in before.events}
    where = f"pool {document.spec.get('pool')}, at Site {site}"
    return [
        Event("Warning", e.reason, f"{where}: {e.message}") for e in after.events if e.reason not in known
    ]


def capacity_of(nodes: Iterable[Manifest]) -> Mapping[str, int]:
    """Nodes that are ready and take pods, and what they have of resources that devices give.

    Their CPUs and memory say nothing of the engines that they could have.
    """
    found: Counter[str] = Counter()
    for node in nodes:
        status = node.get("status", {})
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
        if not ready or node.get("spec", {}).get("unschedulable"):
            continue
        found[NODES] += 1
        for resource, quantity in status.get("allocatable", {}).items():
            if "/" in resource and str(quantity).isdecimal():
                found[resource] += int(quantity)
    devices = sorted(resource for resource in found if resource != NODES and found[resource])
    counted = {resource: min(found[resource], _MOST) for resource in devices[:_MOST_RESOURCES]}
    return {NODES: found[NODES], **counted}
