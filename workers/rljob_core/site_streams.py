"""A job's streams over several sites, as JetStream's API takes them: what a site has, and how it is joined to the hub.

A *site* is a datacenter with a nats-server of its own, a leafnode of the *hub's* server. Each server is a JetStream
domain: that of the hub's is `hub`, that of a site's has the site's name. Streams have the same names and subjects
everywhere, so that workers need not know where they run.

| channel | at the site | at the hub |
|---|---|---|
| trajectories, events | an outbox: a message is deleted once the hub has stored it | sources the site's stream |
| progress, signals | the newest message of each subject | sources the site's stream |
| versions, weights | a mirror | unchanged |
| work of the site's engines | sources the hub's stream | a message is deleted once the site has it |

Every source and mirror reads by a durable push consumer that exists before it (`ack_policy: flow_control`): it resumes
within seconds after a cut, where the consumers that servers create by themselves wait for up to two minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_core.messages import SITE_SIGNALS, site_mark, work_suffix
from rljob_core.ports import Channel
from rljob_core.site_costs import LINK_SHARE
from rljob_core.spec import HUB
from rljob_core.stream_definitions import Definition, stream_definitions
from rljob_core.stream_names import StreamNames

OUTBOXES = (Channel.TRAJECTORIES, Channel.EVENTS)
"""Channels whose messages leave the site for good."""
MIRRORED = (Channel.VERSIONS, Channel.WEIGHTS)
"""Channels that a site has copies of. Whatever the hub deletes there stays at the site, up to the copy's limit."""
NEWEST_UP = (Channel.PROGRESS,)
"""Channels of which a site keeps the newest message of each subject, while the hub's stream takes them all over."""
MARKED = (Channel.TRAJECTORIES, Channel.PROGRESS)
"""Channels in which the coordinator's marks come back behind what a site has stored."""

_UNCONFIRMED = 256
"""Messages of a stream that may be on their way over a link whose rate is not known."""
_WINDOW_SECONDS, _MESSAGE_BYTES = 0.45, 16 << 10
"""How long a link takes for what may be on its way, if messages are of this size. The server that sends them stops when
so many are not confirmed, until a round trip later: fewer do not fill the link. But on a link that is slower than it is
said to be, all of them queue up before a heartbeat. Of larger messages, the server bounds the bytes, by 32 MB.
"""
_FEWEST_UNCONFIRMED, _MOST_UNCONFIRMED = 64, 8192
_SERVER_ID = 16
"""Characters of a server's id that tell it from others."""
_HEARTBEAT = 1_000_000_000
"""Nanoseconds; the only period that the server accepts here."""
_WORK_AGE = 3600 * 1_000_000_000
"""Nanoseconds for which a site keeps work. Engines take theirs at once, so that only work of lost ones is older."""

_SIGNAL_AGE = 60 * 1_000_000_000
"""Nanoseconds for which a site keeps a signal. Engines repeat theirs each second, so only those of lost engines are
older: a hub that reads the stream from its beginning would take them for living ones.
"""


@dataclass(frozen=True, slots=True)
class SiteConsumer:
    """A durable consumer through which one server's stream is read by the stream of that name at the other server.

    Attributes:
        stream: whose messages it delivers.
        definition: as the server takes it.
    """

    stream: str
    definition: Definition

    def replaces(self, name: str) -> bool:
        """Whether a consumer of that name is this one as it was for another process of the site's server."""
        return name.startswith(HUB) and name != self.definition["name"]


@dataclass(frozen=True, slots=True)
class SiteStreams:
    """What joins one site to a job.

    Args:
        names: of the job's streams, the same at the hub and at the site.
        site: its name: one token of a subject.
        trajectory_bytes: limit of the site's outbox of trajectories.
        bits_per_second: of the link, in one direction; None if no limit is known.
        replicas: of each stream at the site.
        weights: whether the job's weights travel over its streams.
        limits: of the site's streams in bytes, by name; None if only the trajectories have one.
        domain: the JetStream domain of its server; empty if it is the site's name.
    """

    names: StreamNames
    site: str
    trajectory_bytes: int
    bits_per_second: float | None = None
    replicas: int = 1
    weights: bool = False
    limits: Mapping[str, int] | None = None
    domain: str = ""

    # ------------------------------------------------------------------------------------------ at the site

    def at_site(self) -> list[Definition]:
        """The streams to create at the site."""
        found = {
            definition["name"]: definition
            for definition in stream_definitions(
                self.names,
                trajectory_bytes=self.trajectory_bytes,
                replicas=self.replicas,
                limits=self.limits,
            )
        }
        for channel in MARKED:
            found[self.names.stream(channel)]["subjects"].append(self.names.mark_subject(self.site, channel))
        streams = [self._outbox(found[self.names.stream(channel)]) for channel in OUTBOXES]
        streams += [_unannounced(found[self.names.stream(channel)]) for channel in NEWEST_UP]
        signals = _unannounced(found[self.names.signal_stream])
        subjects = [*signals["subjects"], self.names.beat_subject(self.site)]
        # The server takes no message id for known for longer than it keeps messages.
        short = {"max_age": _SIGNAL_AGE, "duplicate_window": _SIGNAL_AGE}
        streams.append({**signals, "subjects": subjects, **short})
        streams += [self._mirror(found[self.names.stream(channel)]) for channel in self._mirrored]
        streams.append(self._work(found[self.names.stream(Channel.WORK)]))
        return streams

    def site_consumers(self, server: str) -> list[SiteConsumer]:
        """Those through which the hub reads the site's streams.

        Args:
            server: id of the process of the site's server. If its machine has died, it gives sequences again that the
                hub has seen, and by a consumer that it knows the hub would pass over as many new messages.
        """
        name, to = _hub_consumer(server), f"to.{HUB}.{self.site}"
        return [self._consumer(stream, name=name, to=to) for stream in self.up]

    # ------------------------------------------------------------------------------------------ at the hub

    def hub_consumers(self, *, first_weights: int = 1) -> list[SiteConsumer]:
        """Those through which the site reads the hub's streams. A site that has lost its copy needs a new one.

        Args:
            first_weights: sequence of the first message that a new copy of the weights needs.
        """
        to = f"to.{self.site}"
        found = [self._consumer(stream, name=self.site, to=to) for stream in self.mirrors]
        for consumer in found:
            if consumer.stream == self.names.stream(Channel.WEIGHTS) and first_weights > 1:
                start = {"deliver_policy": "by_start_sequence", "opt_start_seq": first_weights}
                consumer.definition.update(start)
        work = self._consumer(self.names.stream(Channel.WORK), name=self.site, to=to)
        work.definition["filter_subject"] = self.names.subject_of(
            Channel.WORK, work_suffix(">", site=self.site)
        )
        return [*found, work]

    def hub_sources(self, server: str) -> dict[str, Definition]:
        """By stream of the hub, the entry of its `sources` that stands for this site.

        Args:
            server: as for `site_consumers`.
        """
        name, to = _hub_consumer(server), f"to.{HUB}.{self.site}"
        domain = self.domain or self.site
        found = {stream: self._source(stream, domain, name, to) for stream in self.up}
        keys = self.names.signal_subject
        found[self.names.signal_stream]["subject_transforms"] = [
            {"src": f"{keys}>", "dest": f"{keys}>"},
            {"src": self.names.beat_subject(self.site), "dest": f"{keys}{SITE_SIGNALS}{self.site}"},
        ]
        for channel in MARKED:
            subjects, mark = self.names.subject_of(channel, ">"), self.names.mark_subject(self.site, channel)
            found[self.names.stream(channel)]["subject_transforms"] = [
                {"src": subjects, "dest": subjects},
                {"src": mark, "dest": self.names.subject_of(channel, site_mark(self.site))},
            ]
        return found

    # ------------------------------------------------------------------------------------------ parts

    @property
    def outboxes(self) -> list[str]:
        """The streams of the site of which the hub takes everything."""
        return [self.names.stream(channel) for channel in OUTBOXES]

    @property
    def up(self) -> list[str]:
        """The streams of the site that the hub reads."""
        return [*self.outboxes, *map(self.names.stream, NEWEST_UP), self.names.signal_stream]

    @property
    def _mirrored(self) -> list[Channel]:
        return [channel for channel in MIRRORED if self.weights or channel is not Channel.WEIGHTS]

    @property
    def mirrors(self) -> list[str]:
        """The streams that are copies at the site."""
        return [self.names.stream(channel) for channel in self._mirrored]

    @property
    def copies(self) -> list[str]:
        """The streams of the site that read the hub's: the mirrors, and that of the work."""
        return [*self.mirrors, self.names.stream(Channel.WORK)]

    def _outbox(self, definition: Definition) -> Definition:
        return {**_unannounced(definition), "retention": "workqueue"}

    def _mirror(self, definition: Definition) -> Definition:
        """A copy of a stream of the hub, with its sequences."""
        apart = {"subjects", "first_seq", "duplicate_window", "discard_new_per_subject"}
        kept = {name: value for name, value in definition.items() if name not in apart}
        source = self._source(definition["name"], HUB, self.site, f"to.{self.site}")
        # A full copy forgets its oldest messages, which the hub has deleted: it would otherwise take no more.
        return {**kept, "discard": "old", "mirror": source}

    def _work(self, definition: Definition) -> Definition:
        """The work of the site's engines, which read their suffixes here and delete what they take."""
        source = self._source(definition["name"], HUB, self.site, f"to.{self.site}")
        kept = {name: value for name, value in definition.items() if name != "subjects"}
        return {**kept, "sources": [source], "max_age": _WORK_AGE}

    def _source(self, stream: str, domain: str, consumer: str, to: str) -> Definition:
        return {
            "name": stream,
            "external": {"api": f"$JS.{domain}.API"},
            "consumer": {"name": consumer, "deliver_subject": f"{to}.{stream}"},
        }

    def _consumer(self, stream: str, *, name: str, to: str) -> SiteConsumer:
        rate = self.bits_per_second
        definition: Definition = {
            "name": name,
            "durable_name": name,
            "deliver_policy": "all",
            "deliver_subject": f"{to}.{stream}",
            "ack_policy": "flow_control",
            "flow_control": True,
            "idle_heartbeat": _HEARTBEAT,
            "max_ack_pending": _UNCONFIRMED if rate is None else unconfirmed(rate),
        }
        if rate is not None:
            definition["rate_limit_bps"] = round(LINK_SHARE * rate)
        return SiteConsumer(stream, definition)


def unconfirmed(bits_per_second: float) -> int:
    """Messages of a stream that may be on their way over a link of this rate."""
    fitting = round(_WINDOW_SECONDS * bits_per_second / 8 / _MESSAGE_BYTES)
    return min(max(fitting, _FEWEST_UNCONFIRMED), _MOST_UNCONFIRMED)


def with_source(config: Mapping[str, Any], source: Definition) -> Definition | None:
    """The configuration of a stream of the hub that reads from one more site; None if it reads from it as it should.

    Args:
        config: of the stream, as the server gives it.
        source: the site's entry, of `SiteStreams.hub_sources`.
    """
    sources: Sequence[Definition] = config.get("sources") or []
    api = source["external"]["api"]
    before = [held for held in sources if held.get("external", {}).get("api") == api]
    if any(_same_source(held, source) for held in before):
        return None
    return {**config, "sources": [held for held in sources if held not in before] + [source]}


def _hub_consumer(server: str) -> str:
    return f"{HUB}-{server[:_SERVER_ID]}"


def _unannounced(definition: Definition) -> Definition:
    """Without republishing: nobody but the hub reads the stream."""
    return {name: value for name, value in definition.items() if name != "republish"}


def _same_source(held: Definition, wanted: Definition) -> bool:
    """Whether the server's form of a source, with its defaults, is the wanted one."""
    consumer = held.get("consumer") or {}
    return (
        held["name"] == wanted["name"]
        and all(consumer.get(name) == value for name, value in wanted["consumer"].items())
        and (held.get("subject_transforms") or []) == wanted.get("subject_transforms", [])
    )


def is_beyond(copy: int, original: int) -> bool:
    """Whether a copy has messages that its original has lost, as with the machine of its server.

    The copy would take nothing that the original stores at those sequences, and report no error.

    Args:
        copy: its newest sequence.
        original: the newest sequence of the original, read no earlier.
    """
    return copy > original
