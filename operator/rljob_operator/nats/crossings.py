"""What crosses the border between the hub and a site, as imports and exports of NATS accounts (`site_accounts`).

| from the site to the hub | how |
|---|---|
| messages of the site's streams (`to.hub.<site>.<stream>`) | stream |
| flow control of the hub's consumers (`$JS.FC.<stream>.<site>.<any>`) | stream |
| "begin again" for the hub's consumers (`$JS.hub.API.CONSUMER.RESET.<stream>.<site>`) | service |

and the same the other way, besides the coordinator's beats. No import covers one in the opposite direction: the server
would take both for a circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljob_core.site_streams import SiteStreams
from rljob_core.spec import HUB

FLOW = "$JS.FC"
RESET = "CONSUMER.RESET"

Claims = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Crossing:
    """What crosses the border between the hub and one site of one pair of accounts with streams.

    Args:
        site: its name.
        up: streams of the site that the hub reads.
        down: streams of the hub that the site reads.
        domain: the JetStream domain of the site's server; the site itself does not need it.
        beat: subject on which the coordinator sends its beats and marks; empty if there are none.
        words: last tokens of the subjects on which either side tells the other something.
    """

    site: str
    up: tuple[str, ...]
    down: tuple[str, ...]
    domain: str = ""
    beat: str = ""
    words: tuple[str, ...] = ()

    # ------------------------------------------------------------------------------------------ at the hub

    def hub_border_imports(self, account: str) -> list[Claims]:
        """Of the hub's border, from the account with the streams."""
        return [
            *(stream_import(f"to.{self.site}.{name}", account) for name in (*self.down, *self.words)),
            *(stream_import(f"{FLOW}.{name}.*.*", account) for name in self.up),
            *(service_import(f"$JS.API.{RESET}.{name}.{self.site}", account) for name in self.down),
        ]

    def hub_imports(self, border: str) -> list[Claims]:
        """Of the hub's account with the streams, from the border."""
        api = f"$JS.{self.domain or self.site}.API"
        return [
            *(stream_import(f"to.{HUB}.{self.site}.{name}", border) for name in (*self.up, *self.words)),
            *(stream_import(f"{FLOW}.{name}.{self.site}.*", border) for name in self.down),
            *(service_import(f"{api}.{RESET}.{name}.*", border) for name in self.up),
            *([service_import(self.beat, border)] if self.beat else []),
        ]

    # ------------------------------------------------------------------------------------------ at the site

    def site_border_imports(self, account: str) -> list[Claims]:
        """Of the site's border, from the account with the streams."""
        return [
            *(stream_import(f"to.{HUB}.{self.site}.{name}", account) for name in (*self.up, *self.words)),
            *(stream_import(f"{FLOW}.{name}.{self.site}.*", account) for name in self.down),
            *(service_import(f"$JS.API.{RESET}.{name}.*", account) for name in self.up),
        ]

    def site_imports(self, border: str) -> list[Claims]:
        """Of the site's account with the streams, from the border."""
        return [
            *(stream_import(f"to.{self.site}.{name}", border) for name in (*self.down, *self.words)),
            *(stream_import(f"{FLOW}.{name}.*.*", border) for name in self.up),
            *(service_import(f"$JS.{HUB}.API.{RESET}.{name}.{self.site}", border) for name in self.down),
            *([stream_import(self.beat, border)] if self.beat else []),
        ]


def job_crossing(streams: SiteStreams) -> Crossing:
    """What crosses of a job."""
    return Crossing(
        streams.site,
        tuple(streams.up),
        tuple(streams.copies),
        domain=streams.domain,
        beat=streams.names.by_way_of(streams.site),
    )


def talk_crossing(site: str, domain: str, *, up: str, down: str) -> Crossing:
    """What crosses of the account through which operators talk: a stream each way, and a word that there is one."""
    return Crossing(site, (up,), (down,), domain=domain, words=("hello",))


STREAM_EXPORTS: tuple[Claims, ...] = (
    {"name": "to-sites", "subject": "to.>", "type": "stream"},
    {"name": "flow", "subject": f"{FLOW}.*.*.*", "type": "stream"},
)
"""Of an account with streams, to borders."""
RESET_EXPORT: Claims = {
    "name": "reset",
    "subject": f"$JS.API.{RESET}.>",
    "type": "service",
    "response_type": "Singleton",
}
"""Export of the reset requests alone, to borders, from an account that does not export all JetStream requests."""


def stream_import(subject: str, account: str) -> Claims:
    """Hear what an account publishes."""
    return {"subject": subject, "account": account, "type": "stream"}


def service_import(subject: str, account: str) -> Claims:
    """Send requests to an account."""
    return {"subject": subject, "account": account, "type": "service"}


def service_export(subject: str) -> Claims:
    """Answer requests of other accounts, each once."""
    return {"name": subject, "subject": subject, "type": "service", "response_type": "Singleton"}
