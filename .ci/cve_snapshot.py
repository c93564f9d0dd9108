"""Look locked releases up in the advisories of the package index, and keep what they say in .ci/cve-database.json.

    python .ci/cve_snapshot.py               # every locked release; needs the network
    python .ci/cve_snapshot.py --missing     # those that were never looked up, as after `make lock`
    python .ci/cve_snapshot.py aiohttp torch # these packages

pip-audit asks the package index it knows, or a server that speaks OSV's interface (`--osv-url`). Releases that are no
longer locked are dropped from the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from vulnerabilities import (
    DATABASE,
    Record,
    Release,
    Vulnerability,
    locked,
    read_database,
    write_database,
)


def main(arguments: Sequence[str]) -> int:
    """Refresh the database; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these")
    parser.add_argument("--missing", action="store_true", help="only releases that were never looked up")
    parser.add_argument(
        "--osv-url", help="ask this OSV server instead, for example http://osv.example/v1/query"
    )
    parser.add_argument("--requirements", type=Path, default=DATABASE.parents[1] / "requirements")
    parser.add_argument("--database", type=Path, default=DATABASE)
    options = parser.parse_args(arguments)
    releases = locked(options.requirements)
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
        print(f"no requirement file locks {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    found = look_up(wanted, datetime.now(UTC).date(), options.osv_url)
    write_database(known | found, options.database)
    print(f"{DATABASE.name}: {len(found)} of {len(releases)} locked releases looked up")
    if missed := [str(release) for release in wanted if release not in found]:
        print(
            f"no answer for {', '.join(missed)}: the index does not have them, or serves no advisories (--osv-url)",
            file=sys.stderr,
        )
        return 1
    return 0


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
