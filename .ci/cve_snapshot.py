"""Look pinned releases up in advisories, and keep what these say in .ci/cve-database.json.

    python .ci/cve_snapshot.py               # every locked Python package; needs the network
    python .ci/cve_snapshot.py --missing     # releases that were never looked up, as after `make lock`
    python .ci/cve_snapshot.py aiohttp torch # these packages
    python .ci/cve_snapshot.py --advisories advisory-database  # in a git clone of an OSV database; no network

pip-audit asks the package index it knows, or a server that speaks OSV's interface (`--osv-url`). Go modules are looked
up in clones only. An answer from a clone counts as of the clone's last commit, and replaces no newer one. Releases that
are no longer pinned are dropped from the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from osv import read_clone
from releases import PYTHON, ROOT, Release, pinned
from vulnerabilities import DATABASE, Record, Vulnerability, read_database, write_database


def main(arguments: Sequence[str]) -> int:
    """Refresh the database; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these")
    parser.add_argument("--missing", action="store_true", help="only releases that were never looked up")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--osv-url", help="ask this OSV server instead, for example http://osv.example/v1/query"
    )
    source.add_argument(
        "--advisories",
        type=Path,
        metavar="FOLDER",
        help="look into this git clone instead, of github.com/pypa/advisory-database or golang/vulndb",
    )
    parser.add_argument("--repository", type=Path, default=ROOT, metavar="FOLDER")
    parser.add_argument("--database", type=Path, default=DATABASE)
    options = parser.parse_args(arguments)
    releases = pinned(options.repository)
    known = {
        release: record for release, record in read_database(options.database).items() if release in releases
    }
    wanted = [
        release
        for release in releases
        if (not options.packages or release.name in options.packages)
        and not (options.missing and release in known)
    ]
    if unknown := set(options.packages) - {release.name for release in releases}:
        print(f"nothing pins {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    try:
        if options.advisories:
            found = read_clone(options.advisories).look_up(wanted)
        else:
            wanted = [release for release in wanted if release.ecosystem == PYTHON]
            found = look_up(wanted, datetime.now(UTC).date(), options.osv_url)
    except (RuntimeError, ValueError) as error:
        print(f"cve-snapshot: {error}", file=sys.stderr)
        return 1
    write_database(known | newer(found, known), options.database)
    print(f"{DATABASE.name}: {len(found)} of {len(releases)} pinned releases looked up")
    if not options.advisories and (missed := [str(release) for release in wanted if release not in found]):
        print(
            f"no answer for {', '.join(missed)}: the index does not have them, or serves no advisories (--osv-url)",
            file=sys.stderr,
        )
        return 1
    return 0


def newer(found: Mapping[Release, Record], known: Mapping[Release, Record]) -> dict[Release, Record]:
    """Those answers that are no older than what is already known."""
    return {
        release: record
        for release, record in found.items()
        if release not in known or record.looked_up >= known[release].looked_up
    }


def look_up(releases: Sequence[Release], today: date, osv_url: str | None = None) -> dict[Release, Record]:
    """Ask about each release.

    Raises:
        RuntimeError: pip-audit failed; its last words say why.
    """
    found = {}
    for one_version_each in _rounds(releases):
        for answer in _ask(one_version_each, osv_url):
            if "skip_reason" in answer:
                continue
            vulnerabilities = sorted(
                (
                    Vulnerability(one["id"], tuple(sorted(one["aliases"])), tuple(one["fix_versions"]))
                    for one in answer["vulns"]
                ),
                key=lambda one: one.id,
            )
            found[Release(answer["name"], answer["version"])] = Record(today, tuple(vulnerabilities))
    return found


def _ask(releases: Sequence[Release], osv_url: str | None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        requirements, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        requirements.write_text("".join(f"{release}\n" for release in releases), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner=off"]
        command += ["--format=json", f"--requirement={requirements}", f"--output={report}"]
        if osv_url:
            command += ["--vulnerability-service=osv", f"--osv-url={osv_url}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():  # its exit status is 1 also where it has found a vulnerability
            raise RuntimeError(f"pip-audit failed:\n{done.stderr.strip()[-2000:]}")
        answers: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
    return answers


def _rounds(releases: Sequence[Release]) -> list[list[Release]]:
    """Split releases into lists in which no package has two versions."""
    lists: list[list[Release]] = []
    for release in sorted(releases):
        place = next((one for one in lists if release.name not in {other.name for other in one}), None)
        if place is None:
            lists.append(place := [])
        place.append(release)
    return lists


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
