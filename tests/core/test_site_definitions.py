"""What joins a site to a job: the sources of the hub's streams, and what may cross the border."""

from __future__ import annotations

from rljob_core.messages import site_mark
from rljob_core.ports import Channel
from rljob_core.site_border import SOURCE, is_forged_mark, leaf_permissions
from rljob_core.site_streams import SiteStreams, unconfirmed, with_source
from rljob_core.stream_definitions import stream_definitions
from rljob_core.stream_names import StreamNames

NAMES = StreamNames.of_job(namespace="team", job="far", uid="f9")
SERVER = "NDRQOS6JCWIT6GBB3HUTIKP24XDTOLWF"


def site(name: str, **options: object) -> SiteStreams:
    return SiteStreams(NAMES, name, 1 << 30, **options)  # type: ignore[arg-type]


def test_a_source_is_added_beside_those_of_other_sites() -> None:
    stream = NAMES.signal_stream
    west, east = site("west").hub_sources(SERVER)[stream], site("east").hub_sources(SERVER)[stream]
    one = with_source({"name": stream}, west)
    assert one == {"name": stream, "sources": [west]}
    both = with_source(one, east)
    assert both == {"name": stream, "sources": [west, east]}
    held = [{**source, "external": {**source["external"], "deliver": ""}} for source in both["sources"]]
    assert with_source({**both, "sources": held}, west) is None  # as the server gives it back
    former = {**held[0], "subject_transforms": []}
    renewed = with_source({**both, "sources": [former, held[1]]}, west)
    assert renewed is not None
    assert renewed["sources"] == [held[1], west]


def test_the_site_has_what_its_engines_use_and_no_more() -> None:
    hub = {definition["name"]: definition for definition in stream_definitions(NAMES, trajectory_bytes=1)}
    here = {definition["name"]: definition for definition in site("west", weights=True).at_site()}
    used = {
        Channel.TRAJECTORIES,
        Channel.EVENTS,
        Channel.PROGRESS,
        Channel.VERSIONS,
        Channel.WEIGHTS,
        Channel.WORK,
    }
    assert set(here) == {*map(NAMES.stream, used), NAMES.signal_stream}
    assert NAMES.stream(Channel.WEIGHTS) not in {definition["name"] for definition in site("west").at_site()}
    for channel in (Channel.TRAJECTORIES, Channel.EVENTS):
        assert here[NAMES.stream(channel)]["retention"] == "workqueue"
    for channel in (Channel.VERSIONS, Channel.WEIGHTS, Channel.WORK):  # only the hub writes to them
        assert "subjects" not in here[NAMES.stream(channel)]
    for name in (NAMES.stream(Channel.VERSIONS), NAMES.stream(Channel.WORK)):  # engines follow them
        assert here[name]["republish"] == hub[name]["republish"]


def test_each_stream_has_a_consumer_at_its_origin_that_leaves_room_on_the_link() -> None:
    streams = site("west", bits_per_second=1e8)
    up, down = streams.site_consumers(SERVER), streams.hub_consumers()
    assert {consumer.stream for consumer in up} == set(streams.hub_sources(SERVER))
    read = [d for d in streams.at_site() if "mirror" in d or "sources" in d]
    assert {consumer.stream for consumer in down} == {definition["name"] for definition in read}
    assert {consumer.definition["rate_limit_bps"] for consumer in (*up, *down)} == {90_000_000}
    assert {consumer.definition["max_ack_pending"] for consumer in (*up, *down)} == {343}
    (work,) = [consumer for consumer in down if consumer.stream == NAMES.stream(Channel.WORK)]
    assert work.definition["filter_subject"] == NAMES.subject_of(Channel.WORK, "site.west.engine.>")
    assert all("rate_limit_bps" not in c.definition for c in site("west").site_consumers(SERVER))
    assert {c.definition["max_ack_pending"] for c in site("west").site_consumers(SERVER)} == {256}
    assert [unconfirmed(rate) for rate in (1e6, 1e9, 1e12)] == [64, 3433, 8192]


def test_another_process_of_a_sites_server_is_another_source() -> None:
    stream, other = NAMES.signal_stream, "NDOTHER"
    before, after = (site("west").hub_sources(server)[stream] for server in (SERVER, other))
    changed = with_source({"name": stream, "sources": [before]}, after)
    assert changed == {"name": stream, "sources": [after]}
    (former,) = {consumer.definition["name"] for consumer in site("west").site_consumers(SERVER)}
    for consumer in site("west").site_consumers(other):
        assert consumer.replaces(former)
        assert not consumer.replaces(consumer.definition["name"])
        assert not consumer.replaces("west")


def test_a_site_reaches_only_what_is_its_own() -> None:
    west, east = leaf_permissions("west"), leaf_permissions("east")
    assert set(west.publish) & set(east.publish) == {"$JSC.R.>"}
    assert set(west.subscribe) & set(east.subscribe) == {"$JSC.R.>", "$JS.FC.*.*.*"}
    delivered = {c.definition["deliver_subject"] for c in site("west").site_consumers(SERVER)}
    assert all(subject.startswith("to.hub.west.") for subject in delivered)


def test_a_mark_counts_only_by_way_of_its_site() -> None:
    def headers(subject: str) -> dict[str, str]:
        return {SOURCE: f"{NAMES.stream(Channel.TRAJECTORIES)}:hash 7 > > {subject}"}

    by_way = NAMES.mark_subject("east", Channel.TRAJECTORIES)
    assert is_forged_mark("east", {}), "a role at the hub has stored it"
    assert not is_forged_mark("east", headers(by_way))
    assert is_forged_mark("eas", headers(by_way))
    assert is_forged_mark("east", headers(NAMES.subject_of(Channel.TRAJECTORIES, site_mark("east"))))
    assert is_forged_mark("east", {SOURCE: "no such form"})
