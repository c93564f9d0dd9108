"""The two key-value buckets of a site as streams: their names, and how they are joined over the border.

Each side says hello every few seconds, and with it how far the bucket goes that it writes (`BucketHello`). The other
side makes its mirror again where that one cannot follow (`is_outdated`): a mirror reports no error when it is a copy of
a stream that is gone, or has messages that its original has lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from rljob_core.site_streams import is_beyond
from rljob_core.spec import HUB
from rljob_core.stream_definitions import Definition
from rljob_operator.decisions.site_documents import SiteMessage

_BYTES = 256 << 20
"""Limit of a bucket."""
_REPORTED_BYTES = 16 << 20
"""Limit of what the hub copies of a site's bucket, and its operator has in memory."""
_UNCONFIRMED = 64
_LINK_SHARE = 0.5
"""Of a link's rate that the pools may use: tokens and weights have the rest, whatever many pools are made at once."""
_HEARTBEAT = 1_000_000_000
"""Nanoseconds; the only period that the server accepts for such a consumer."""


_STUCK = timedelta(seconds=60)
"""After which a copy that lacks messages and gets none is made again."""
_COPY_OF = "rljob.copy-of"
"""Key in a mirror's metadata: which stream it is a copy of."""


class BucketHello(SiteMessage):
    """What one side says of the bucket that it writes; all fields are empty until it says something.

    Attributes:
        created: when the server created the bucket's stream, by which it differs from others of its name.
        last: the newest sequence.
        again: another value each time that all mirrors are to be made again.
        release: of the operator.
        site: of the hub's hello, the `created` of the site's bucket: another one that says it is this site is not.
    """

    created: Annotated[str, Field(max_length=64)] = ""
    last: Annotated[int, Field(ge=0)] = 0
    again: Annotated[str, Field(max_length=64)] = ""
    release: Annotated[str, Field(max_length=64)] = ""
    site: Annotated[str, Field(max_length=64)] = ""

    @property
    def source(self) -> str:
        """Identifies what a mirror is a copy of; empty if that is not said."""
        return f"{self.created} {self.again}".strip() if self.created else ""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Whether a mirror that lacks messages gets them; each hello of the other side says how many there are.

    Attributes:
        last: its newest sequence, when it began to stand still.
        since: when that was; None if it lacks nothing.
    """

    last: int = 0
    since: datetime | None = None

    def after(self, last: int, original: int, now: datetime) -> CopyProgress:
        """The progress after another hello."""
        if original <= last:
            return CopyProgress()
        return self if self.since is not None and self.last == last else CopyProgress(last, now)

    def is_stuck(self, now: datetime) -> bool:
        """Whether it has to be made again."""
        return self.since is not None and now - self.since > _STUCK


@dataclass(frozen=True, slots=True)
class SiteBucketNames:
    """The two buckets of a site, and how their streams are joined over the border.

    Each mirror reads by a durable consumer that exists before it, with the names and subjects that a site's leafnode
    may use: it resumes within seconds after a cut.

    Args:
        site: its name.
        domain: the JetStream domain of its server.
    """

    site: str
    domain: str

    @property
    def pools(self) -> str:
        """The bucket that the hub writes."""
        return f"rljob_pools_{self.site}"

    @property
    def reports(self) -> str:
        """The bucket that the site writes."""
        return f"rljob_reports_{self.site}"

    @property
    def from_hub(self) -> str:
        """Prefix of subjects that cross the border to the site."""
        return f"to.{self.site}"

    @property
    def from_site(self) -> str:
        """Prefix of subjects that cross the border to the hub."""
        return f"to.{HUB}.{self.site}"

    def mirror_at_site(self, source: str = "") -> Definition:
        """The site's copy of what the hub writes.

        Args:
            source: `BucketHello.source` of the hub.
        """
        return _mirror(self.pools, source, domain=HUB, consumer=self.site, to=self.from_hub)

    def mirror_at_hub(self, source: str = "") -> Definition:
        """The hub's copy of what the site writes.

        Args:
            source: `BucketHello.source` of the site.
        """
        made = _mirror(self.reports, source, domain=self.domain, consumer=HUB, to=self.from_site)
        return {**made, "max_bytes": _REPORTED_BYTES}

    def consumer_at_hub(self, bits_per_second: int | None = None) -> Definition:
        """Through which the site reads what the hub writes.

        Args:
            bits_per_second: of the link; None if that is not known.
        """
        made = _consumer(self.pools, name=self.site, to=self.from_hub)
        limit = {} if bits_per_second is None else {"rate_limit_bps": round(_LINK_SHARE * bits_per_second)}
        return {**made, **limit}

    def consumer_at_site(self) -> Definition:
        """Through which the hub reads what the site writes."""
        return _consumer(self.reports, name=HUB, to=self.from_site)


def hello_from_hub(site: str) -> str:
    """The subject on which the hub's operator says that its side of a site's buckets exists."""
    return f"to.{site}.hello"


def hello_from_site(site: str) -> str:
    """The subject on which a site's operator says that its side of the buckets exists; `*` for every site."""
    return f"to.{HUB}.{site}.hello"


def stream_of(bucket: str) -> str:
    """The name of a bucket's stream."""
    return f"KV_{bucket}"


def subject_of(bucket: str, key: str) -> str:
    """The subject of a key."""
    return f"$KV.{bucket}.{key}"


def bucket_definition(bucket: str) -> Definition:
    """The stream of a bucket, where it is written."""
    return {
        **_common(bucket),
        "subjects": [subject_of(bucket, ">")],
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
    }


def copied_source(config: Mapping[str, Any]) -> str:
    """`BucketHello.source` of what a mirror is a copy of; empty if it was made before that was said."""
    return str((config.get("metadata") or {}).get(_COPY_OF, ""))


def is_outdated(config: Mapping[str, Any], wanted: Definition, *, last: int, hello: BucketHello) -> bool:
    """Whether a mirror has to be made again, because it cannot follow its original.

    Args:
        config: of the mirror, as its server has it.
        wanted: as it would be made now.
        last: its newest sequence, when `hello` was not yet read.
        hello: what the other side says of the original.
    """
    held, mirror = config.get("mirror") or {}, wanted["mirror"]
    if held.get("name") != mirror["name"] or config.get("max_bytes") != wanted["max_bytes"]:
        return True
    if any(
        (held.get(part) or {}).get(k) != v
        for part in ("external", "consumer")
        for k, v in mirror[part].items()
    ):
        return True  # it reads from another domain
    if not hello.created:
        return False
    return copied_source(config) != hello.source or is_beyond(last, hello.last)


def _mirror(bucket: str, copy_of: str, *, domain: str, consumer: str, to: str) -> Definition:
    stream = stream_of(bucket)
    source = {
        "name": stream,
        "external": {"api": f"$JS.{domain}.API"},
        "consumer": {"name": consumer, "deliver_subject": f"{to}.{stream}"},
    }
    metadata = {"metadata": {_COPY_OF: copy_of}} if copy_of else {}
    return {**_common(bucket), "discard": "old", "mirror": source, **metadata}


def _common(bucket: str) -> Definition:
    return {
        "name": stream_of(bucket),
        "retention": "limits",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "max_bytes": _BYTES,
        "allow_direct": True,
    }


def _consumer(bucket: str, *, name: str, to: str) -> Definition:
    return {
        "name": name,
        "durable_name": name,
        "deliver_policy": "all",
        "deliver_subject": f"{to}.{stream_of(bucket)}",
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": _HEARTBEAT,
        "max_ack_pending": _UNCONFIRMED,
    }
