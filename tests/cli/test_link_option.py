"""`--link` of `rljob run`: what it says of a site's link, and words that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_job import write_job
from invocation import refused

from rljob_cli.manifest.load import load_job
from rljob_cli.run.link_option import links_of
from rljob_core.errors import SpecError
from rljob_core.spec import SiteLinkSpec
from rljob_runtime.messaging.nats.emulated_link import Cut

POOLS = {"pools": [{"name": "near"}, {"name": "far", "site": "west"}]}


def test_an_option_changes_what_it_names_and_no_more(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, rollout=POOLS))
    described = {"west": SiteLinkSpec(bits_per_second=10**7, price_per_gigabyte="0.05")}
    assert links_of([], job, described).links == described
    found = links_of(["west=delay:60ms,rate:1.5mbit,cut:30s@2m,cut:8s@30s/1m"], job, described)
    assert found.links == {
        "west": SiteLinkSpec(bits_per_second=1_500_000, latency_seconds=0.06, price_per_gigabyte="0.05")
    }
    assert found.cuts == {"west": [Cut(30.0, 120.0), Cut(8.0, 30.0, 60.0)]}
    assert links_of(["west=cut:1s@0s"], job, {}).links == {"west": SiteLinkSpec()}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("west", "write SITE=delay:60ms,rate:100mbit,cut:30s@120s"),
        ("east=delay:1s", "no pool is at a site east: name one of west"),
        ("west=delay:60", '"60" needs a number and a unit: write 60ms'),
        ("west=delay:2m", "latencySeconds: Input should be less than or equal to 60"),
        ("west=rate:100mbps", '"100mbps" needs a number and a unit: write 100mbit'),
        ("west=delay:1s,delay:2s", "delay comes twice"),
        ("west=cut:30s", "a cut needs its beginning: write cut:30s@120s"),
        ("west=cut:30s@10s/20s", "let nothing pass: write a longer period"),
        ("west=loss:1%", '"loss" is no part of a link'),
    ],
)
def test_other_words_are_refused(tmp_path: Path, option: str, words: str) -> None:
    (error,) = refused(write_job(tmp_path, rollout=POOLS, weights={"transport": "Nats"}), "--link", option)
    assert error.startswith("--link: ")
    assert words in error


def test_a_site_is_named_once(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, rollout=POOLS))
    with pytest.raises(SpecError, match="comes twice for west"):
        links_of(["west=delay:1s", "west=rate:1mbit"], job, {})


def test_when_a_link_is_cut() -> None:
    once, again = Cut(30, 120), Cut(8, 30, 60)
    assert [once.cuts(t) for t in (0, 119.9, 120, 149.9, 150, 1000)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert [again.cuts(t) for t in (29, 30, 37.9, 38, 89.9, 90, 98)] == [
        False,
        True,
        True,
        False,
        False,
        True,
        False,
    ]
