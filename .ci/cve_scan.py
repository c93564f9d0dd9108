"""Fail if a pinned release has a known vulnerability that nobody has accepted. Needs no network.

    python .ci/cve_scan.py              # part of `make check`
    python .ci/cve_scan.py --complete   # also fail if a release was not looked up within 30 days

It reads .ci/cve-database.json, which `make cve-snapshot` writes, and says how old that is; an answer older than 30 days
is a warning. A vulnerability without a fix, or one that cannot be reached, is accepted for a while in
.ci/cve-allowed.toml. An entry there that has expired, or that accepts nothing that is known, also fails the scan. So
does a database that knows none of the locked Python packages, or has answers about them that are older than 180 days,
unless the table `stale-database` there accepts that.
Exit status: 0 nothing to do, 1 something was found, 2 a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from releases import GO, PYTHON, ROOT, Release, pinned
from vulnerabilities import (
    ALLOWED,
    DATABASE,
    Allowance,
    Record,
    Waiver,
    read_allowed,
    read_database,
    read_waiver,
)

MAX_AGE_DAYS = 30
STALE_DAYS = 180
"""An answer about a Python package that is older counts as none."""


def main(arguments: Sequence[str]) -> int:
    """Scan; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repository", type=Path, default=ROOT, metavar="FOLDER")
    parser.add_argument("--database", type=Path, default=DATABASE)
    parser.add_argument("--allowed", type=Path, default=ALLOWED)
    parser.add_argument("--today", type=date.fromisoformat, default=datetime.now(UTC).date())
    parser.add_argument("--complete", action="store_true", help="fail if a release was not looked up of late")
    options = parser.parse_args(arguments)
    try:
        releases = pinned(options.repository)
        database = read_database(options.database)
        allowances = read_allowed(options.allowed)
        waiver = read_waiver(options.allowed)
    except (OSError, ValueError, KeyError) as error:
        print(f"cve-scan: {error}", file=sys.stderr)
        return 2
    known = {release: database[release] for release in releases if release in database}
    print(coverage(known, releases))
    if warning := outdated(known, options.today):
        print(f"cve-scan: warning: {warning}", file=sys.stderr)
    problems = open_vulnerabilities(releases, known, allowances, options.today)
    problems += idle_allowances(known, allowances)
    problems += stale_database(known, waiver, options.today)
    if waiver is not None and (lack := _lack(known, options.today)) and not problems:
        print(f"cve-scan: {lack}, which is accepted until {waiver.expires}: {waiver.reason}")
    if options.complete:
        problems += [
            f"{release}: not looked up within {MAX_AGE_DAYS} days: run `make cve-snapshot`"
            for release in releases
            if release not in known or (options.today - known[release].looked_up).days > MAX_AGE_DAYS
        ]
    for problem in problems:
        print(f"cve-scan: {problem}", file=sys.stderr)
    return int(bool(problems))


def coverage(known: Mapping[Release, Record], releases: Mapping[Release, Sequence[str]]) -> str:
    """How many of the pinned releases the database knows, and the day of its oldest answer, by ecosystem."""
    parts = []
    for ecosystem, what in _KINDS.items():
        looked_up, all_of_them = _of(ecosystem, known), _of(ecosystem, releases)
        if not all_of_them:
            continue
        part = f"{len(looked_up)} of {len(all_of_them)} {what} were looked up"
        if looked_up:
            part += f" (the oldest answer is of {min(known[release].looked_up for release in looked_up)})"
        parts.append(part)
    text = f"cve-scan: {', '.join(parts)}"
    if len(known) < len(releases):
        text += "; nothing is known of the others: run `make cve-snapshot ARGS=--missing`"
    return text


def outdated(known: Mapping[Release, Record], today: date) -> str | None:
    """What to tell a reader of a pass that rests on answers of long ago."""
    old = {
        release: days
        for release, record in known.items()
        if (days := (today - record.looked_up).days) > MAX_AGE_DAYS
    }
    if not old:
        return None
    packages = " and ".join(
        f"{len(part)} {what}" for name, what in _KINDS.items() if (part := _of(name, old))
    )
    return (
        f"the answers about {packages} are older than {MAX_AGE_DAYS} days, up to {max(old.values())} days; what "
        "became known since then is not found: run `make cve-snapshot`"
    )


def _of(ecosystem: str, releases: Iterable[Release]) -> list[Release]:
    return [release for release in releases if release.ecosystem == ecosystem]


_KINDS = {PYTHON: "Python packages", GO: "Go modules"}


def open_vulnerabilities(
    releases: Mapping[Release, Sequence[str]],
    known: Mapping[Release, Record],
    allowances: Sequence[Allowance],
    today: date,
) -> list[str]:
    """A line for each known vulnerability that is not accepted today."""
    lines = []
    for release, record in known.items():
        for vulnerability in record.vulnerabilities:
            accepted = [one for one in allowances if one.covers(release, vulnerability)]
            if any(today <= one.expires for one in accepted):
                continue
            named = ", ".join((vulnerability.id, *vulnerability.aliases))
            remedy = (
                f"fixed in {', '.join(vulnerability.fixed_in)}: {_upgrade(release)}"
                if vulnerability.fixed_in
                else f"no release fixes it: replace the package, or accept it in {ALLOWED.name}"
            )
            expired = f" (accepted until {max(one.expires for one in accepted)})" if accepted else ""
            lines.append(f"{release} ({', '.join(releases[release])}) has {named}{expired}; {remedy}")
    return lines


def _upgrade(release: Release) -> str:
    if release.ecosystem == PYTHON:
        return f"run `make lock UPGRADE='-P {release.name}'`"
    return "pin such a release there (`python -m e2e.harness pin` writes go.mod)"


def stale_database(known: Mapping[Release, Record], waiver: Waiver | None, today: date) -> list[str]:
    """A line if nothing recent is known of Python packages and nobody accepts that today."""
    lack = _lack(known, today)
    if lack is None or (waiver is not None and today <= waiver.expires):
        return []
    expired = f" (accepted until {waiver.expires})" if waiver is not None else ""
    remedy = f"run `make cve-snapshot`, or accept it for a while in {ALLOWED.name} (stale-database)"
    return [f"{lack}, so known vulnerabilities would not be found{expired}: {remedy}"]


def _lack(known: Mapping[Release, Record], today: date) -> str | None:
    """What the scan cannot vouch for; None if it has answers that are recent enough."""
    looked_up = _of(PYTHON, known)
    if not looked_up:
        return "no Python package was looked up"
    stale = [release for release in looked_up if (today - known[release].looked_up).days > STALE_DAYS]
    if not stale:
        return None
    return f"{len(stale)} of {len(looked_up)} Python packages were last looked up more than {STALE_DAYS} days ago"


def idle_allowances(known: Mapping[Release, Record], allowances: Sequence[Allowance]) -> list[str]:
    """A line for each allowance that accepts nothing: it would hide the next vulnerability of that name."""
    return [
        f"{ALLOWED.name} accepts {one.id} of {one.package}, which no pinned release is known to have: remove it"
        for one in allowances
        if not any(
            one.covers(release, each) for release, record in known.items() for each in record.vulnerabilities
        )
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
