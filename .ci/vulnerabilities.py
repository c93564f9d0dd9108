"""What is known about pinned releases, and what of it is accepted for a while: cve_snapshot.py and cve_scan.py use it.

| file | content |
|---|---|
| `.ci/cve-database.json` | for a release: the day on which it was looked up, and the vulnerabilities known that day |
| `.ci/cve-allowed.toml` | vulnerabilities that do not fail the scan, each with a reason and a last day |

Standard library only, so that the scan needs no environment.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from releases import ROOT, Release

DATABASE = ROOT / ".ci" / "cve-database.json"
ALLOWED = ROOT / ".ci" / "cve-allowed.toml"


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One advisory about a release.

    Attributes:
        id: of the advisory.
        aliases: the same vulnerability in other databases, for example its CVE.
        fixed_in: versions without it; empty if there is none yet.
    """

    id: str
    aliases: tuple[str, ...]
    fixed_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """What was known about one release on one day."""

    looked_up: date
    vulnerabilities: tuple[Vulnerability, ...]


@dataclass(frozen=True, slots=True)
class Allowance:
    """A vulnerability, by its id or an alias, that is accepted for one package until a day, inclusive."""

    id: str
    package: str
    reason: str
    expires: date

    def covers(self, release: Release, vulnerability: Vulnerability) -> bool:
        """Whether it accepts this vulnerability of this release, leaving aside the day."""
        return release.name == self.package and self.id in (vulnerability.id, *vulnerability.aliases)


def read_database(path: Path = DATABASE) -> dict[Release, Record]:
    """What was looked up; nothing if there is no such file."""
    if not path.exists():
        return {}
    records = {}
    for pin, entry in json.loads(path.read_text(encoding="utf-8")).items():
        records[Release.parse(pin)] = Record(
            date.fromisoformat(entry["looked_up"]),
            tuple(
                Vulnerability(one["id"], tuple(one["aliases"]), tuple(one["fixed_in"]))
                for one in entry["vulnerabilities"]
            ),
        )
    return records


def write_database(records: Mapping[Release, Record], path: Path = DATABASE) -> None:
    """One line for each release, in order, so that a change shows what changed."""
    lines = [
        f"{json.dumps(str(release))}: "
        + json.dumps(
            {
                "looked_up": record.looked_up.isoformat(),
                "vulnerabilities": [asdict(one) for one in record.vulnerabilities],
            }
        )
        for release, record in sorted(records.items())
    ]
    path.write_text("\n".join(["{", ",\n".join(lines), "}", ""]) if lines else "{}\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Waiver:
    """That locked Python packages were not looked up, or long ago, is accepted until a day, inclusive."""

    reason: str
    expires: date


def read_waiver(path: Path = ALLOWED) -> Waiver | None:
    """The waiver of a database that is empty or old; None if there is none.

    Raises:
        ValueError: it gives no reason, or its `expires` is no date.
    """
    entry = tomllib.loads(path.read_text(encoding="utf-8")).get("stale-database")
    if entry is None:
        return None
    reason, expires = entry.get("reason"), entry.get("expires")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{path}: stale-database: `reason` has to be a text that is not empty")
    if type(expires) is not date:
        raise ValueError(f"{path}: stale-database: `expires` has to be a date, as in 2027-01-31")
    return Waiver(reason, expires)


def read_allowed(path: Path = ALLOWED) -> list[Allowance]:
    """The accepted vulnerabilities.

    Raises:
        ValueError: an entry lacks a field, gives no reason, or its `expires` is no date.
    """
    allowances = []
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("allowed", []), 1):
        for key in ("id", "package", "reason"):
            if not isinstance(entry.get(key), str) or not entry[key].strip():
                raise ValueError(f"{path}: entry {number}: `{key}` has to be a text that is not empty")
        if type(entry.get("expires")) is not date:
            raise ValueError(f"{path}: entry {number}: `expires` has to be a date, as in 2027-01-31")
        allowances.append(Allowance(entry["id"], entry["package"], entry["reason"], entry["expires"]))
    return allowances
