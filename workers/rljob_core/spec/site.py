"""Site: another datacenter whose engines may work for jobs of this cluster, the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rljob_core.spec.base import HUB, ApiModel, Form, Immutable, Name, Price, Rule
from rljob_core.spec.status import Conditions

GRACE_SECONDS = 600
"""For which a coordinator keeps the work of a site that it does not reach, if its Site does not say more."""
SILENT_SECONDS = 30
"""For which an operator listens for a site in any case."""
BITS_BEFORE_BEAT = 16_000_000
"""On the link before a beat: a message of results, and one of progress, each of at most a megabyte."""
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"

NamespacePattern = Annotated[
    str,
    StringConstraints(max_length=63),
    Form(
        r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$",
        "must be the name of a namespace, or * for every namespace",
    ),
]
LabelValue = Annotated[
    str,
    StringConstraints(max_length=63),
    Form(
        rf"^({_LABEL})?$",
        "must be the value of a label: letters, digits, hyphens, dots and underscores, a letter or digit at either end",
    ),
]


class SiteLinkSpec(ApiModel):
    """The link between a site and the hub."""

    bits_per_second: Annotated[int, Field(ge=1_000, le=10**13)] | None = None
    """What the link carries in one direction; absent: unknown, and nothing is limited by it."""
    latency_seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Seconds that a message takes in one direction."""
    price_per_gigabyte: Price | None = None
    """What 10^9 bytes over the link cost, as text, in the currency of the pools' costPerHour; absent: nothing."""


def shortest_grace(bits_per_second: int | None) -> int:
    """Seconds that a beat may wait for what is on a link: a site's grace is no shorter. None: the link is unknown."""
    return 0 if bits_per_second is None else -(-BITS_BEFORE_BEAT // bits_per_second)


class SiteSpec(ApiModel):
    """How the hub reaches a site, and who may use it."""

    domain: Annotated[
        Name | None, Immutable("streams of running jobs are found by it", "create another Site")
    ] = None
    """JetStream domain of the site's NATS server, which is a leafnode of the hub's; absent: the Site's own name."""
    grace_seconds: Annotated[int, Field(ge=0, le=604_800)] = GRACE_SECONDS
    """Seconds for which a site may be away until what its engines generate is given to others, and the status of its
    pools is Unknown."""
    lost_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 86_400
    """Seconds for which hub and site may be cut off from each other until each counts the other as lost: the hub its
    engines there, the site's operator the pools that it runs, which it then ends; both until they hear each other."""
    link: SiteLinkSpec = SiteLinkSpec()
    """The link between the site and the hub."""
    namespaces: Annotated[list[NamespacePattern], Field(max_length=1000)] = Field(default=[])
    """Namespaces whose RLJobs may have pools at the site, or * for all; none if it is empty."""
    pool_labels: Annotated[dict[str, LabelValue], Field(max_length=64)] = Field(default={})
    """Labels of the site's nodes that a pool may select by (nodeSelector of its template); empty: not checked."""

    rules = (
        Rule(
            "domain",
            f"!has(self.domain) || self.domain != '{HUB}'",
            f"domain {HUB} is that of the hub's own NATS server: give the site's server another one",
            lambda spec: spec.domain != HUB,
        ),
        Rule(
            "graceSeconds",
            "!has(self.link) || !has(self.link.bitsPerSecond) || "
            f"self.link.bitsPerSecond * (self.graceSeconds > {SILENT_SECONDS} ? self.graceSeconds : {SILENT_SECONDS})"
            f" >= {BITS_BEFORE_BEAT}",
            f"graceSeconds must be at least {BITS_BEFORE_BEAT} divided by link.bitsPerSecond: so long may a beat wait "
            "for results on the link; write a longer graceSeconds, or use a faster link",
            lambda spec: spec.waits_for_beats,
        ),
    )

    @property
    def waits_for_beats(self) -> bool:
        """Whether the site may be away for as long as a beat takes that waits for what is on the link."""
        return max(self.grace_seconds, SILENT_SECONDS) >= shortest_grace(self.link.bits_per_second)


class SiteStatus(ApiModel):
    """What is known of a site."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: Conditions = Field(default=[])
    """Connected: whether the site's operator is heard. CaughtUp: whether all that it stored for the hub has arrived."""
    connected: bool = False
    """Whether the site's operator is heard."""
    last_beat: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When the hub last heard from the site's operator, by the hub's clock."""
    outbox_bytes: int = 0
    """Bytes that the site has stored for the hub and the hub has not taken, as last reported."""
    mirror_lag: int = 0
    """Messages of the hub that the site's copies lack, as last reported."""
    capacity: Annotated[dict[str, int], Field(max_length=32)] = Field(default={})
    """Nodes of the site that take pods (nodes) and their devices, such as nvidia.com/gpu, as last reported; empty if
    its operator may not read nodes."""


class SiteMeta(BaseModel):
    """The part of a Site's metadata that we read; the rest is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: Name
    """What `spec.rollout.pools[].site` says."""
    uid: str | None = None
    generation: int | None = None


class Site(ApiModel):
    """A datacenter besides the hub, with a Kubernetes cluster and a NATS server of its own."""

    api_version: Literal["rljob.dev/v1alpha1"]
    """rljob.dev/v1alpha1"""
    kind: Literal["Site"]
    """Site"""
    metadata: SiteMeta
    """Kubernetes' object metadata."""
    spec: SiteSpec
    """How the hub reaches the site, and who may use it."""
    status: SiteStatus | None = None
    """Observed state, written by the operator."""

    rules = (
        Rule(
            "metadata",
            f"self.metadata.name != '{HUB}'",
            f"{HUB} is the cluster that the coordinator is in: give the Site another name",
            lambda site: site.metadata.name != HUB,
        ),
    )

    @property
    def domain(self) -> str:
        """The JetStream domain of the site's NATS server."""
        return self.spec.domain or self.metadata.name

    def admits(self, namespace: str) -> bool:
        """Whether RLJobs of a namespace may have pools here."""
        return bool({namespace, "*"} & set(self.spec.namespaces))

    def lacks(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Those of some labels that no node here has; none if the Site does not say which labels its nodes have."""
        offered = self.spec.pool_labels
        return {key: value for key, value in labels.items() if offered and offered.get(key) != value}
