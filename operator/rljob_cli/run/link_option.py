"""`--link` of `rljob run`: what the emulated link of a site carries, how long it takes, and when it is cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, SiteLinkSpec
from rljob_runtime.messaging.nats.emulated_link import Cut

HELP = (
    "Emulate the link to a site: SITE=delay:60ms,rate:100mbit,cut:30s@120s, each part at most once but cut. delay is "
    "that of each direction; cut:30s@120s lets nothing pass for 30 s, 120 s after the start, and cut:8s@30s/60s does "
    "so again every 60 s. Without it, the link is what a Site in the file says. Repeat it for other sites."
)
_FORM = "write SITE=delay:60ms,rate:100mbit,cut:30s@120s, or some of these parts"
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)")


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a run.

    Attributes:
        links: what is known of each, by site.
        cuts: when each is cut, by site.
    """

    links: Mapping[str, SiteLinkSpec]
    cuts: Mapping[str, Sequence[Cut]]


def links_of(options: Sequence[str], job: RLJob, described: Mapping[str, SiteLinkSpec]) -> Links:
    """The links of a job's sites.

    Args:
        options: `--link` as often as it was given.
        job: whose pools name the sites.
        described: the links that the job's file describes; an option changes what it names.

    Raises:
        SpecError: an option has another form, comes twice for a site, or names a site at which no pool is.
    """
    links, cuts = dict(described), dict[str, list[Cut]]()
    for option in options:
        site, equals, parts = option.partition("=")
        if not equals or not parts:
            raise SpecError("--link", f'"{option}": {_FORM}')
        if site in cuts:
            raise SpecError(
                "--link", f"comes twice for {site}: write all parts into one, with commas between"
            )
        if site not in job.spec.rollout.sites:
            known = ", ".join(job.spec.rollout.sites)
            raise SpecError(
                "--link",
                f"no pool is at a site {site}: "
                + (f"name one of {known}" if known else "add site to a pool of spec.rollout.pools"),
            )
        changed, cuts[site] = _parts(option, parts)
        link = links.get(site, SiteLinkSpec()).model_dump(by_alias=True) | changed
        try:
            links[site] = SiteLinkSpec.model_validate(link, by_alias=True)
        except ValidationError as error:
            found = error.errors()[0]
            raise SpecError("--link", f'"{option}": {found["loc"][0]}: {found["msg"]}') from error
    return Links(links, cuts)


def _parts(option: str, text: str) -> tuple[dict[str, Any], list[Cut]]:
    changed, cuts = dict[str, Any](), list[Cut]()
    for part in text.split(","):
        name, _, value = part.partition(":")
        field = {"delay": "latencySeconds", "rate": "bitsPerSecond"}.get(name)
        if field in changed:
            raise SpecError("--link", f'"{option}": {name} comes twice: keep one')
        if name == "delay":
            changed["latencySeconds"] = _number(option, value, _SECONDS, "60ms, or 0.06s")
        elif name == "rate":
            changed["bitsPerSecond"] = round(_number(option, value, _BITS, "100mbit, 500kbit, or 1gbit"))
        elif name == "cut":
            cuts.append(_cut(option, value))
        else:
            raise SpecError("--link", f'"{option}": "{name}" is no part of a link: {_FORM}')
    return changed, cuts


def _cut(option: str, text: str) -> Cut:
    length, at, start = text.partition("@")
    if not at:
        raise SpecError("--link", f'"{option}": a cut needs its beginning: write cut:30s@120s')
    first, again, period = start.partition("/")
    cut = Cut(
        _number(option, length, _SECONDS, "30s"),
        _number(option, first, _SECONDS, "120s"),
        _number(option, period, _SECONDS, "60s") if again else 0.0,
    )
    if again and cut.every <= cut.seconds:
        raise SpecError(
            "--link", f'"{option}": cuts of {length} every {period} let nothing pass: write a longer period'
        )
    return cut


def _number(option: str, text: str, units: Mapping[str, float], example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units:
        raise SpecError("--link", f'"{option}": "{text}" needs a number and a unit: write {example}')
    return float(match[1]) * units[match[2]]
