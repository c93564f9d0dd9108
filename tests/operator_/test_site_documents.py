"""What travels between hub and site: what is written, and what a site makes of what it reads."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from pydantic import ValidationError

from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.site_buckets import SiteBucketNames
from rljob_operator.decisions.site_documents import (
    BEAT,
    BucketChanges,
    PoolDocument,
    changes_at_hub,
    content_id,
    document_of,
    index_key,
    pool_key,
    report_key,
    reported_namespace,
    wanted_pools,
)
from rljob_operator.decisions.site_reports import PoolReport


def pool(name: str = "sums-rollout-far", *, uid: str = "u", replicas: int = 1, **metadata: Any) -> Manifest:
    return {
        "kind": "RolloutPool",
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": uid,
            "generation": 3,
            "labels": {"a": "b"},
            **metadata,
        },
        "spec": {"job": "sums", "pool": "far", "replicas": replicas, "config": "x" * 100_000, "template": {}},
        "status": {"replicas": 7},
    }


def written(changes: BucketChanges, held: dict[str, bytes] | None = None) -> dict[str, bytes]:
    after = {**(held or {}), **dict(changes.puts)}
    return {key: value for key, value in after.items() if key not in changes.deletes}


def bucket(*pools: Manifest) -> dict[str, bytes]:
    return written(changes_at_hub(map(document_of, pools), {}))


def test_a_pool_arrives_whole_and_small() -> None:
    held = bucket(pool())
    wanted = wanted_pools(held)
    (document,) = wanted.pools.values()
    assert document == document_of(pool())
    assert document.spec == pool()["spec"]
    assert "status" not in document.model_dump()
    assert wanted.content == content_id(held) == content_id({**held, BEAT: b"1"})
    assert len(held[pool_key(("team", "sums-rollout-far"))]) < 2_000


def test_nothing_is_written_that_is_there_and_the_index_comes_last() -> None:
    held = bucket(pool("a"), pool("b"))
    assert changes_at_hub(map(document_of, [pool("b"), pool("a")]), held) == BucketChanges()
    scaled = changes_at_hub(map(document_of, [pool("a", replicas=2), pool("b")]), held)
    assert [key for key, _ in scaled.puts] == ["pool.team.a"]
    more = changes_at_hub(map(document_of, [pool("a"), pool("b"), pool("c")]), held)
    assert [key for key, _ in more.puts] == ["pool.team.c", "index.team"]
    fewer = changes_at_hub(map(document_of, [pool("b")]), held)
    assert [key for key, _ in fewer.puts] == ["index.team"]
    assert fewer.deletes == ("pool.team.a",)


def test_an_empty_bucket_says_nothing_and_an_empty_list_that_there_is_no_pool() -> None:
    assert wanted_pools({}).namespaces == frozenset()
    assert changes_at_hub([], {}) == BucketChanges()
    left = written(changes_at_hub([], before := bucket(pool())), before)
    assert set(left) == {index_key("team")}
    wanted = wanted_pools(left)
    assert (wanted.namespaces, wanted.pools, wanted.unread) == ({"team"}, {}, frozenset())
    assert len({content_id({}), content_id(left), content_id(before)}) == 3


@pytest.mark.parametrize(
    "index",
    [b"", b"{", b"[]", b"[" * 100_000, b'{"pools": 1, "format": 1}', b'{"pools": {}, "format": 2}'],
)
def test_a_list_that_cannot_be_read_says_nothing(index: bytes) -> None:
    wanted = wanted_pools({**bucket(pool()), index_key("team"): index})
    assert (wanted.namespaces, wanted.pools, wanted.unread) == (frozenset(), {}, frozenset())


def test_operators_that_share_the_namespaces_leave_each_other_s_pools_alone() -> None:
    theirs = bucket(pool(namespace="other"))
    held = written(changes_at_hub([document_of(pool())], theirs, namespaces=["team"]), theirs)
    assert wanted_pools(held).namespaces == {"team", "other"}
    assert len(wanted_pools(held).pools) == 2
    left = written(changes_at_hub([], held, namespaces=["team"]), held)
    assert set(wanted_pools(left).pools) == {("other", "sums-rollout-far")}
    assert wanted_pools(written(changes_at_hub([], held), held)).pools == {}, "of all namespaces"


@pytest.mark.parametrize(
    "damage", ["missing", "damaged", "cut", "a bomb", "of another pool", "of a newer format"]
)
def test_a_pool_that_is_listed_and_cannot_be_read_stays_as_it_is(damage: str) -> None:
    held = bucket(pool("a"), pool("b"))
    key = pool_key(("team", "a"))
    match damage:
        case "missing":
            del held[key]
        case "damaged":
            held[key] = held[key][:-9]
        case "cut":
            held[key] = held[key][:-1]
        case "a bomb":
            held[key] = zlib.compress(zlib.decompress(held[key]) + b" " * (64 << 20), 9)
        case "of another pool":
            held[key] = bucket(pool("a", uid="gone"))[key]
        case _:
            newer = document_of(pool("a")).model_copy(update={"format": 2})
            held[key] = dict(changes_at_hub([newer], {}).puts)[key]
    wanted = wanted_pools(held)
    assert set(wanted.pools) == {("team", "b")}
    assert wanted.unread == {("team", "a")}


def test_what_a_newer_release_adds_is_ignored() -> None:
    newer = {**document_of(pool()).model_dump(), "colour": "green"}
    assert PoolDocument.model_validate(newer) == document_of(pool())


def test_buckets_of_two_sites_never_meet() -> None:
    assert report_key(("team", "a")) == "report.team.a"
    sites = [SiteBucketNames(site, site) for site in ("a", "a-reports", "reports-a", "pools")]
    names = [name for site in sites for name in (site.pools, site.reports)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "key", ["x", "report", "report.team", "report.team.a.b", BEAT, pool_key(("team", "a"))]
)
def test_what_is_no_report_is_of_no_namespace(key: str) -> None:
    assert reported_namespace(key) is None
    assert reported_namespace(report_key(("team", "a"))) == "team"


@pytest.mark.parametrize(
    "said",
    [
        {"replicas": 10**23},
        {"readyReplicas": -1, "ready_replicas": -1},
        {"generation": -1},
        {"conditions": [{"type": "Ready", "status": "Maybe", "reason": "Odd"}]},
        {"conditions": [{"type": "Ready", "status": "True", "reason": "not a word"}]},
        {"conditions": [{"type": "Ready", "status": "True", "reason": "Odd"}] * 17},
    ],
)
def test_a_report_that_the_api_server_would_refuse_is_no_report(said: dict[str, Any]) -> None:
    report = {"uid": "u", "generation": 1}
    PoolReport.model_validate(report)
    with pytest.raises(ValidationError):
        PoolReport.model_validate({**report, **said})
