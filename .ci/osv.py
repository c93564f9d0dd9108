"""A local git clone of an OSV database, and which of its advisories affect a release.

Only clones of databases that are complete for an ecosystem are read: those of PyPA and of Go, by where these keep their
files. Of another one, an answer "nothing is known" would replace what is known from them. The clone may be bare,
shallow or partial; only its last commit is read. A file that is no OSV record is skipped.
https://ossf.github.io/osv-schema/ defines records and how versions match them.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_version
from packaging.version import Version
from releases import GO, PYTHON, Release, normalized
from vulnerabilities import Record, Vulnerability

Order = Callable[[str], Any]
"""What versions of an ecosystem are sorted by."""


@dataclass(frozen=True, slots=True)
class OsvDatabase:
    """The advisories of a clone.

    Attributes:
        as_of: the day of its last commit: what became known later, it does not know.
        ecosystems: those of its advisories, withdrawn ones included. It says nothing about packages of others.
        affected: for a package, by ecosystem and name: each advisory, and the part of it about that package.
    """

    as_of: date
    ecosystems: set[str] = field(default_factory=set)
    affected: dict[tuple[str, str], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = field(
        default_factory=dict
    )

    def look_up(self, releases: Sequence[Release]) -> dict[Release, Record]:
        """What is known about releases; those of another ecosystem are left out.

        Raises:
            ValueError: a version, of a release or in an advisory about its package, cannot be compared.
        """
        return {
            release: Record(self.as_of, tuple(self._vulnerabilities(release)))
            for release in releases
            if release.ecosystem in self.ecosystems
        }

    def _vulnerabilities(self, release: Release) -> Iterator[Vulnerability]:
        about: dict[str, list[Mapping[str, Any]]] = {}
        aliases = {}
        for advisory, affected in self.affected.get((release.ecosystem, release.name), ()):
            about.setdefault(advisory["id"], []).append(affected)
            aliases[advisory["id"]] = tuple(sorted(advisory.get("aliases") or ()))
        for advisory_id, parts in sorted(about.items()):
            try:
                if any(is_affected(release, part) for part in parts):
                    yield Vulnerability(advisory_id, aliases[advisory_id], tuple(_fixed_in(release, parts)))
            except ValueError as error:
                raise ValueError(f"{advisory_id}, about {release}: {error}") from error


def read_clone(folder: Path) -> OsvDatabase:
    """Read the last commit of a clone.

    Raises:
        ValueError: it is no clone, or not of a known database, or holds no advisory.
    """
    day = datetime.fromtimestamp(int(_git(folder, "log", "-1", "--format=%ct")), UTC).date()
    database = OsvDatabase(day)
    for ecosystem, record in _records(folder):
        for affected in record["affected"]:
            package = affected.get("package") or {}
            name = package.get("name")
            if package.get("ecosystem") != ecosystem or not name:
                continue
            database.ecosystems.add(ecosystem)
            if not record.get("withdrawn"):
                key = ecosystem, normalized(name) if ecosystem == PYTHON else name
                database.affected.setdefault(key, []).append((record, affected))
    if not database.ecosystems:
        raise ValueError(f"{folder}: its last commit holds no OSV record that names a package")
    return database


def is_affected(release: Release, affected: Mapping[str, Any]) -> bool:
    """Whether one `affected` of an advisory about this package names its version, or has a range that holds it."""
    versions = _names(release)
    listed = [_canonical(release.ecosystem, version) for version in affected.get("versions") or ()]
    if any(_canonical(release.ecosystem, version) in listed for version in versions):
        return True
    order, ranges = _ORDERS[release.ecosystem], list(_ranges(release, affected))
    return any(_in_range(version, events, order) for events in ranges for version in versions)


def semantic_order(version: str) -> tuple[Any, ...]:
    """The precedence of semantic versions, with or without Go's leading `v`; metadata of a build counts for nothing."""
    found = re.fullmatch(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+\S*)?", version)
    if found is None:
        raise ValueError(f"{version} is no semantic version")
    *numbers, pre_release = found.groups()
    parts = [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in (pre_release or "").split(".")
    ]
    return (*(int(number or 0) for number in numbers), pre_release is None, parts)


_ORDERS: Mapping[str, Order] = {PYTHON: Version, GO: semantic_order}
_RANGES = {PYTHON: "ECOSYSTEM", GO: "SEMVER"}


def _names(release: Release) -> set[str]:
    """The versions by which an advisory may speak of a release: a build of `2.9.0` (`2.9.0+cu128`) is affected, too."""
    if release.ecosystem == PYTHON:
        return {release.version, Version(release.version).public}
    return {release.version}


def _canonical(ecosystem: str, version: str) -> Any:
    """What is the same for spellings of a version; PyPA lists old ones that are no versions, as `a3`."""
    return canonicalize_version(version) if ecosystem == PYTHON else semantic_order(version)


def _ranges(release: Release, affected: Mapping[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """The events of each range of versions: ranges of commits (`GIT`) are passed over."""
    for one in affected.get("ranges") or ():
        if one.get("type") == _RANGES[release.ecosystem]:
            yield [event for events in one["events"] for event in events.items()]


def _in_range(version: str, events: Sequence[tuple[str, str]], order: Order) -> bool:
    at = order(version)
    inside = any(kind == "introduced" and bound == "0" for kind, bound in events)  # before every version
    bounded = [(order(bound), kind) for kind, bound in events if bound != "0"]
    for bound, kind in sorted(bounded, key=lambda event: event[0]):
        if kind == "introduced" and bound <= at:
            inside = True
        elif (kind == "fixed" and bound <= at) or (kind == "last_affected" and bound < at):
            inside = False
    return inside


def _fixed_in(release: Release, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Later versions that an advisory calls fixed, the lowest first."""
    order = _ORDERS[release.ecosystem]
    fixed = {
        bound
        for part in parts
        for events in _ranges(release, part)
        for kind, bound in events
        if kind == "fixed" and order(bound) > order(release.version)
    }
    return sorted(fixed, key=order)


def _records(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a clone, each with the ecosystem of its database."""
    names = _git(folder, "ls-tree", "-r", "--name-only", "-z", "HEAD").decode().split("\0")
    found = [
        (ecosystem, pattern) for ecosystem, pattern in _LAYOUTS.items() if any(map(pattern.fullmatch, names))
    ]
    if not found:
        raise ValueError(
            f"{folder}: its last commit is not of a known database: PyPA's (github.com/pypa/advisory-database) has "
            "vulns/PACKAGE/PYSEC-*.yaml, Go's (github.com/golang/vulndb) has data/osv/GO-*.json"
        )
    if len(found) > 1:
        raise ValueError(f"{folder}: its last commit mixes the files of more than one database")
    ((ecosystem, pattern),) = found
    archive = _git(folder, "archive", "--format=tar", "HEAD", "--", _ROOTS[ecosystem])
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            wanted = member.isfile() and pattern.fullmatch(member.name)
            content = files.extractfile(member) if wanted else None
            if content is None:
                continue
            text = content.read()
            record = json.loads(text) if member.name.endswith(".json") else yaml.load(text, _LOADER)
            if isinstance(record, dict) and record.get("id") and isinstance(record.get("affected"), list):
                yield ecosystem, record


_LAYOUTS = {
    PYTHON: re.compile(r"vulns/[^/]+/PYSEC-[0-9-]+\.yaml"),
    GO: re.compile(r"data/osv/GO-[0-9-]+\.json"),
}
"""The files of the databases that are read."""
_ROOTS = {PYTHON: "vulns", GO: "data/osv"}
# All scalars are texts to this loader: 1.10 is a version, not a number.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def _git(folder: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{folder} cannot be read as a git clone: {done.stderr.decode().strip()}")
    return done.stdout
