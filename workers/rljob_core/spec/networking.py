"""`spec.networking`: what a job's workers may connect to besides what the rest of the spec names."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_core.spec.base import ApiModel, Form, Namespace, Rule

_NUMBER = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

Cidr = Annotated[
    str,
    StringConstraints(max_length=43),
    Form(
        rf"^({_NUMBER}(\.{_NUMBER}){{3}}/(3[0-2]|[12]?[0-9])|[0-9a-f:]*:[0-9a-f:]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$",
        "must be a range of addresses: for instance 10.1.0.0/16, or 192.0.2.7/32 for one address",
    ),
]
Port = Annotated[int, Field(ge=1, le=65_535)]


def _is_range(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


class EgressSpec(ApiModel):
    """A place that workers may connect to."""

    cidr: Cidr | None = None
    """Range of addresses, inside or outside the cluster. 0.0.0.0/0: anywhere."""
    namespace: Namespace | None = None
    """All pods of this namespace, also behind its Services."""
    ports: Annotated[list[Port], Field(max_length=16)] = Field(default=[])
    """TCP ports, as pods and servers listen on them (not a Service's own); absent: any port and protocol."""

    rules = (
        Rule(
            "cidr",
            "has(self.cidr) != has(self.namespace)",
            "cidr or namespace must say where, and only one of them: write two entries for two places",
            lambda place: (place.cidr is None) != (place.namespace is None),
        ),
        Rule(
            "cidr",
            "!has(self.cidr) || isCIDR(self.cidr)",
            "cidr has numbers and colons that are not an address: write a range such as fd00:10::/32",
            lambda place: place.cidr is None or _is_range(place.cidr),
        ),
    )


class NetworkingSpec(ApiModel):
    """What workers may connect to."""

    egress: Annotated[list[EgressSpec], Field(max_length=32)] = Field(default=[])
    """Places besides NATS, DNS, the object stores and servers that the spec names, and what the cluster's
    administrator allows every job."""
