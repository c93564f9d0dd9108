"""Fail if a locked release has a known vulnerability that nobody has accepted. Needs no network.

    python .ci/cve_scan.py              # part of `make check`
    python .ci/cve_scan.py --complete   # also fail if a locked release was not looked up within 30 days

It reads .ci/cve-database.json, which `make cve-snapshot` writes, and says how old that is. A vulnerability without a
fix, or one that cannot be reached, is accepted for a while in .ci/cve-allowed.toml. An entry there that has expired, or
that accepts nothing that is known, also fails the scan. So does a database that knows none of the locked releases,
unless the table `empty-database` there accepts it for a while. Exit status: 0 nothing to do, 1 something was found,
2 a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from vulnerabilities import (
    ALLOWED,
    DATABASE,
    Allowance,
    Record,
    Release,
    Waiver,
    locked,
    read_allowed,
    read_database,
    read_waiver,
)

MAX_AGE_DAYS = 30


def main(arguments: Sequence[str]) -> int:
    """Scan; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requirements", type=Path, default=DATABASE.parents[1] / "requirements")
    parser.add_argument("--database", type=Path, default=DATABASE)
    parser.add_argument("--allowed", type=Path, default=ALLOWED)
    parser.add_argument("--today", type=date.fromisoformat, default=datetime.now(UTC).date())
    parser.add_argument("--complete", action="store_true", help="fail if a release was not looked up of late")
    options = parser.parse_args(arguments)
    try:
        releases = locked(options.requirements)
        database = read_database(options.database)
        allowances = read_allowed(options.allowed)
        waiver = read_waiver(options.allowed)
    except (OSError, ValueError, KeyError) as error:
        print(f"cve-scan: {error}", file=sys.stderr)
        return 2
    known = {release: database[release] for release in releases if release in database}
    print(age(known, len(releases), options.today))
    problems = open_vulnerabilities(releases, known, allowances, options.today)
    problems += idle_allowances(known, allowances)
    problems += empty_database(known, waiver, options.today)
    if not known and waiver is not None and not problems:
        print(f"cve-scan: nothing was looked up, which is accepted until {waiver.expires}: {waiver.reason}")
    if options.complete:
        problems += [
            f"{release}: not looked up within {MAX_AGE_DAYS} days: run `make cve-snapshot`"
            for release in releases
            if release not in known or (options.today - known[release].looked_up).days > MAX_AGE_DAYS
        ]
    for problem in problems:
        print(f"cve-scan: {problem}", file=sys.stderr)
    return int(bool(problems))


def age(known: Mapping[Release, Record], locked_releases: int, today: date) -> str:
    """How much of what is locked the database knows, and how old its oldest answer is."""
    text = f"cve-scan: {len(known)} of {locked_releases} locked releases were looked up"
    if known:
        oldest = min(record.looked_up for record in known.values())
        days = (today - oldest).days
        text += f", the oldest of them {days} days ago ({oldest})"
        if days > MAX_AGE_DAYS:
            text += "; what became known since then is not found: run `make cve-snapshot`"
    if len(known) < locked_releases:
        text += "; nothing is known of the others: run `make cve-snapshot ARGS=--missing`"
    return text


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
                f"fixed in {', '.join(vulnerability.fixed_in)}: run `make lock UPGRADE='-P {release.name}'`"
                if vulnerability.fixed_in
                else f"no release fixes it: replace the package, or accept it in {ALLOWED.name}"
            )
            expired = f" (accepted until {max(one.expires for one in accepted)})" if accepted else ""
            lines.append(f"{release} ({', '.join(releases[release])}) has {named}{expired}; {remedy}")
    return lines


def empty_database(known: Mapping[Release, Record], waiver: Waiver | None, today: date) -> list[str]:
    """A line if nothing was looked up and nobody accepts that today."""
    if known or (waiver is not None and today <= waiver.expires):
        return []
    expired = f" (accepted until {waiver.expires})" if waiver is not None else ""
    remedy = f"run `make cve-snapshot`, or accept it for a while in {ALLOWED.name} (empty-database)"
    return [f"no locked release was looked up, so nothing would be found{expired}: {remedy}"]


def idle_allowances(known: Mapping[Release, Record], allowances: Sequence[Allowance]) -> list[str]:
    """A line for each allowance that accepts nothing: it would hide the next vulnerability of that name."""
    return [
        f"{ALLOWED.name} accepts {one.id} of {one.package}, which no locked release is known to have: remove it"
        for one in allowances
        if not any(
            one.covers(release, each) for release, record in known.items() for each in record.vulnerabilities
        )
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
