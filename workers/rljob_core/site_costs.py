"""What a link between a site and the hub costs: seconds and money of the bytes that it carries."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.spec import SiteLinkSpec
from rljob_core.streams_budget import PAYLOAD_BYTES, RESPONSE_TOKEN_BYTES

LINK_SHARE = 0.9
"""Of a link's rate that one stream may use: what remains is for signals, which would be seconds late behind a backlog.
"""
_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """A link, in the units in which decisions count.

    Attributes:
        latency: seconds that a message takes in one direction.
        bytes_per_second: that the largest stream has of it; None if the link's rate is not known.
        price: of one byte.
    """

    latency: float = 0.0
    bytes_per_second: float | None = None
    price: float = 0.0

    @classmethod
    def of(cls, link: SiteLinkSpec | None) -> LinkCosts:
        """Those of a Site's link; nothing costs anything if it is not known."""
        if link is None:
            return cls()
        rate = None if link.bits_per_second is None else LINK_SHARE * link.bits_per_second / 8
        return cls(link.latency_seconds, rate, float(link.price_per_gigabyte or 0) / _GIGABYTE)

    def seconds(self, size: float) -> float:
        """Seconds in which so many bytes pass, if nothing else does, without the latency."""
        return 0.0 if self.bytes_per_second is None else size / self.bytes_per_second


def answer_bytes(tokens: float) -> float:
    """About what an answer of so many tokens takes on a link."""
    return PAYLOAD_BYTES + RESPONSE_TOKEN_BYTES * tokens
