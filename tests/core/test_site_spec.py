"""The model of a Site: what it refuses, whom it admits, which labels its nodes have."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rljob_core.spec import Site


def site(name: str = "east", **spec: Any) -> Site:
    return Site.model_validate(
        {"apiVersion": "rljob.dev/v1alpha1", "kind": "Site", "metadata": {"name": name}, "spec": spec}
    )


def test_its_domain_is_its_own_name_unless_it_has_another() -> None:
    assert site().domain == "east"
    assert site(domain="east-1").domain == "east-1"


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("hub", {}, "give the Site another name"),
        ("east", {"domain": "hub"}, "give the site's server another one"),
        ("east", {"domain": "east.1"}, "lower-case letters"),
        ("East", {}, "lower-case letters"),
        ("east", {"namespaces": ["team-*"]}, "must be the name of a namespace"),
        ("east", {"namespaces": ["x" * 64]}, "at most 63 characters"),
        ("east", {"poolLabels": {"gpu": "-"}}, "must be the value of a label"),
        ("east", {"graceSeconds": 604_801}, "less than or equal to 604800"),
        (
            "east",
            {"graceSeconds": 159, "link": {"bitsPerSecond": 100_000}},
            "must be at least 16000000 divided by",
        ),
        ("east", {"graceSeconds": 0, "link": {"bitsPerSecond": 533_333}}, "write a longer graceSeconds"),
        ("east", {"link": {"bitsPerSecond": 0}}, "greater than or equal to 1000"),
        ("east", {"link": {"pricePerGigabyte": "free"}}, "must be a decimal number"),
    ],
)
def test_what_it_refuses(name: str, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        site(name, **spec)


@pytest.mark.parametrize(("grace", "rate"), [(160, 100_000), (0, 533_334), (0, None), (600, 10**13)])
def test_it_may_be_away_for_as_long_as_a_beat_takes(grace: int, rate: int | None) -> None:
    assert site(graceSeconds=grace, link={"bitsPerSecond": rate}).spec.waits_for_beats


def test_whom_it_admits() -> None:
    assert not site().admits("team-a")
    assert site(namespaces=["team-a"]).admits("team-a")
    assert not site(namespaces=["team-a"]).admits("team-b")
    assert site(namespaces=["*"]).admits("team-b")


def test_labels_are_checked_only_if_it_says_which_its_nodes_have() -> None:
    assert site().lacks({"gpu": "h100"}) == {}
    offered = site(poolLabels={"gpu": "l40s", "zone": "a"})
    assert offered.lacks({"gpu": "l40s"}) == {}
    assert offered.lacks({"gpu": "h100", "zone": "a", "disk": "ssd"}) == {"gpu": "h100", "disk": "ssd"}
