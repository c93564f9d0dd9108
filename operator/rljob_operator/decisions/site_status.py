"""The status of a Site, of what its operator has reported."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import ConditionFacts, object_conditions, time_text
from rljob_operator.decisions.site_reports import SILENT, SiteBeat, SiteContact
from rljob_operator.names import FORGET_SITE, NEVER_HEARD

_SHOWN = 3
"""Keys in a message."""


def last_beat(known: Mapping[str, Any], contact: SiteContact) -> str | None:
    """When a site was last heard; None if it never was."""
    return time_text(contact.heard) if contact.heard is not None else known.get("lastBeat")


def why_lost(manifest: Manifest, contact: SiteContact, *, seconds: int, now: datetime) -> str:
    """Why a site counts as lost; empty if it does not.

    Args:
        manifest: of the Site.
        contact: when the site was last heard.
        seconds: `lostSeconds` of the Site.
        now: the time, with its time zone.
    """
    silent = contact.silent(now)
    if silent > max(timedelta(seconds=seconds), SILENT):
        return f"has not been heard for {int(silent.total_seconds())} s, longer than its lostSeconds"
    word = manifest["metadata"].get("annotations", {}).get(FORGET_SITE)
    # A beat that has come since takes the word back, whatever clocks say.
    if word is not None and word == (last_beat(manifest.get("status", {}), contact) or NEVER_HEARD):
        return "is forgotten"
    return ""


def site_status(
    known: Mapping[str, Any],
    contact: SiteContact,
    *,
    generation: int,
    now: datetime,
    pools: str = "",
    trouble: tuple[str, str] | None = None,
    lost: str = "",
    obstacle: str = "",
    unwritten: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The status of a Site.

    Args:
        known: the status as it is stored.
        contact: when the site was last heard.
        generation: of the Site.
        now: the time, with its time zone.
        pools: identifies what the site should have read.
        trouble: reason and message why the hub does not talk to the site; None if it does.
        lost: why the site counts as lost; empty if it does not.
        obstacle: why the site's reports cannot be copied, as far as that is known.
        unwritten: by key of what the site should read, why the hub's server does not take it.
    """
    connected = trouble is None and contact.heard is not None and contact.silent(now) <= SILENT
    beat = contact.beat or SiteBeat(number=0)
    heard = last_beat(known, contact)
    if connected:
        link = "True", "BeatsArrive", ""
    elif trouble is not None:
        link = "False", *trouble
    elif contact.heard is None and contact.silent(now) <= SILENT:
        return dict(known) | {"observedGeneration": generation}  # this operator has just started
    else:
        since = f"last heard at {heard}" if heard else "never heard"
        as_lost = f", and counts as lost: it {lost}" if lost else ""
        link = (
            "False",
            "SiteLost" if lost else "NoBeats",
            f"the site's operator is {since}{as_lost}: {obstacle or 'see its log, the link, its leafnode'}",
        )
    caught_up = ("Unknown", "NoBeats", "") if not connected else _caught_up(beat, pools, unwritten)
    status = {
        "observedGeneration": generation,
        "connected": connected,
        "outboxBytes": beat.outbox_bytes,
        "mirrorLag": beat.mirror_lag,
        **({"capacity": dict(sorted(beat.capacity.items()))} if beat.capacity else {}),
        "conditions": object_conditions(
            known, {"Connected": link, "CaughtUp": caught_up}, generation=generation, now=now
        ),
    }
    return status if heard is None else {**status, "lastBeat": heard}


def _caught_up(beat: SiteBeat, pools: str, unwritten: Mapping[str, str]) -> ConditionFacts:
    behind = [
        f"{key} cannot be written for the site: {why}" for key, why in sorted(unwritten.items())[:_SHOWN]
    ]
    if beat.outbox_bytes:
        behind.append(f"{beat.outbox_bytes} bytes wait for the hub")
    if beat.mirror_lag:
        behind.append(f"{beat.mirror_lag} messages of the hub wait for the site")
    if beat.pools != pools:
        behind.append("the site has not read the newest state of its pools")
    return ("False", "CatchingUp", ", ".join(behind)) if behind else ("True", "NothingWaits", "")
