"""Who is a site, of which release, and whether a copy of a bucket can follow its original."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import NOW

from rljob_operator.decisions.site_buckets import BucketHello, CopyProgress, SiteBucketNames, is_outdated
from rljob_operator.decisions.site_claims import SiteClaim, releases_fit
from rljob_operator.decisions.site_reports import SILENT

SECOND = timedelta(seconds=1)
NAMES = SiteBucketNames("east", "east")
HELLO = BucketHello(created="2026", last=7)


def test_the_first_server_is_the_site_until_it_is_silent() -> None:
    claim = SiteClaim().after("a", NOW).after("b", NOW + SECOND)
    assert (claim.created, claim.is_contested(NOW + SECOND)) == ("a", True)
    assert claim.after("a", NOW + 2 * SECOND).is_contested(NOW + 2 * SECOND)
    assert not claim.is_contested(NOW + SECOND + SILENT + SECOND), "the other one has gone"
    lost = claim.after("b", NOW + SILENT)
    assert lost.created == "a"
    lost = lost.after("b", NOW + SILENT + SECOND)
    assert lost.created == "b"
    assert not SiteClaim("a", NOW).after("b", NOW + SILENT + SECOND).is_contested(NOW + SILENT + SECOND)


def test_an_older_release_does_not_say_which_server_it_has() -> None:
    assert SiteClaim("a", NOW).after("", NOW + SECOND) == SiteClaim("a", NOW + SECOND)


@pytest.mark.parametrize(
    ("one", "other", "fit"),
    [
        ("1.4.0", "1.4.9", True),
        ("1.4.0", "1.5.0", True),
        ("1.4.0", "1.6.0", False),
        ("1.4.0", "2.4.0", False),
        ("0.9.0", "0.10.0.dev1", True),
        ("", "1.4.0", True),
        ("1.4.0", "unreadable", True),
    ],
)
def test_releases_may_be_one_minor_version_apart(one: str, other: str, fit: bool) -> None:
    assert releases_fit(one, other) is fit
    assert releases_fit(other, one) is fit


@pytest.mark.parametrize(
    ("change", "last", "hello", "outdated"),
    [
        ({}, 7, HELLO, False),
        ({}, 0, HELLO, False),
        ({}, 8, HELLO, True),
        ({}, 7, HELLO.model_copy(update={"created": "2027"}), True),
        ({}, 7, HELLO.model_copy(update={"again": "1"}), True),
        ({}, 8, BucketHello(), False),
        ({"metadata": {"_nats.level": "4"}}, 7, HELLO, True),
        ({"mirror": {}}, 7, HELLO, True),
    ],
)
def test_when_a_copy_has_to_be_made_again(
    change: dict[str, Any], last: int, hello: BucketHello, outdated: bool
) -> None:
    wanted = NAMES.mirror_at_hub(hello.source)
    held = {**NAMES.mirror_at_hub(HELLO.source), **change}
    assert is_outdated(held, wanted, last=last, hello=hello) is outdated


def test_a_copy_of_another_domain_has_to_be_made_again() -> None:
    held = SiteBucketNames("east", "est").mirror_at_hub(HELLO.source)
    assert is_outdated(held, NAMES.mirror_at_hub(HELLO.source), last=7, hello=HELLO)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"last": -1}', b'{"created": 1}'])
def test_a_hello_that_cannot_be_read_is_none(data: bytes) -> None:
    assert BucketHello.read(data) is None
    assert BucketHello.read(HELLO.model_dump_json().encode()) == HELLO


def test_a_copy_that_gets_what_it_lacks_is_not_stuck() -> None:
    late = NOW + timedelta(seconds=61)
    still = CopyProgress().after(3, 9, NOW).after(3, 9, late)
    assert still.is_stuck(late)
    assert not still.is_stuck(late - SECOND)
    assert not still.after(4, 9, late).is_stuck(late + timedelta(seconds=60)), "it moves"
    assert not still.after(9, 9, late).is_stuck(late + timedelta(hours=1)), "it has everything"
