"""The planner's observations and actions that concern the links to sites; see `rljob_core.actions`."""

from __future__ import annotations

from dataclasses import dataclass

# ---- observations


@dataclass(frozen=True, slots=True)
class SiteHeartbeat:
    """The coordinator has read a heartbeat back that it had sent by way of a site: both directions of its link work.

    Attributes:
        site: the site.
        age: how many own heartbeats have come back since it was sent.
    """

    site: str
    age: int = 0


@dataclass(frozen=True, slots=True)
class SitesLost:
    """The operator counts these sites as lost, or has not heard them for their grace, and all others not: what their
    engines do is not waited for any more while they are away.
    """

    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteMarkSeen:
    """A mark that was sent by way of a site, in the trajectory stream: what the site had stored before it was read.

    Attributes:
        sequence: of its message.
        site: the site.
        number: of the mark; 0 if another coordinator has sent it.
    """

    sequence: int
    site: str
    number: int


@dataclass(frozen=True, slots=True)
class MarkFound:
    """The answer to `FindMark`: the number of the newest mark that came back; 0 if it is not this coordinator's."""

    site: str
    number: int


# ---- actions


@dataclass(frozen=True, slots=True)
class SendMark:
    """Send a mark by way of a site, behind the payloads and the progress that it has stored; `SiteMarkSeen` follows."""

    site: str
    number: int


@dataclass(frozen=True, slots=True)
class FindMark:
    """Look up the newest mark that came back with the progress of a site; `MarkFound` follows."""

    site: str
