"""Fixtures of the fault tests: a model, runs that clean up after themselves, and the tally of all kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from block_device import MAY_MOUNT, Disk
from boundaries import BOUNDARIES, ROLES
from e2e.harness.availability import available
from e2e.harness.older_nats_server import older_nats_server_program
from faulty_run import FaultyRun, Say
from kill_locations import PAIR, RANDOM, Landed, table

from rljob_contract.tiny_models import tiny_model

ROWS = (*(boundary.name for boundary in BOUNDARIES), RANDOM, PAIR)

_TALLY = pytest.StashKey[list[Landed]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = []


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> list[Landed]:
    """All kills of this session, where they landed."""
    return pytestconfig.stash[_TALLY]


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Say:
    """Print a line at once."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", end="", flush=True)  # noqa: T201

    return line


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def older_nats_server() -> Path:
    """The program of a release of nats-server before the installed one."""
    with available():
        return older_nats_server_program()


@pytest.fixture
def disk_at() -> Iterator[Callable[[Path], Disk]]:
    """Mount a disk as a folder."""
    if not MAY_MOUNT:
        pytest.skip("mounting a file system needs root")
    disks: list[Disk] = []

    def mount(place: Path) -> Disk:
        place.parent.mkdir(parents=True, exist_ok=True)
        disks.append(Disk(place.with_name(f"{place.name}.img"), place))
        return disks[-1]

    yield mount
    for disk in disks:
        disk.unmount()


@pytest.fixture
def disk_of(tmp_path: Path, disk_at: Callable[[Path], Disk]) -> Callable[[str], Disk]:
    """Mount a disk on which the run of a name, begun later, keeps its whole folder."""
    return lambda name: disk_at(tmp_path / name.replace(" ", "-") / "run")


@pytest.fixture
def start(
    tmp_path: Path, model: Path, say: Say, tally: list[Landed], request: pytest.FixtureRequest
) -> Iterator[Callable[..., FaultyRun]]:
    """Begin a run; at the test's end it is gone, and its kills are counted."""
    runs: list[FaultyRun] = []

    def begin(name: str, *, steps: int, **changes: Any) -> FaultyRun:
        runs.append(FaultyRun(name, tmp_path / name.replace(" ", "-"), model, say, steps=steps, **changes))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()
        tally += run.landed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    landed = config.stash[_TALLY]
    if not landed:
        return
    terminalreporter.section("where each kill landed, by the ledger")
    for one in landed:
        terminalreporter.line(str(one) + ("" if one.there else "   NOT AT ITS BOUNDARY: not counted"))
    terminalreporter.section("kills by boundary and role")
    for line in table(landed, ROWS, ROLES):
        terminalreporter.line(line)
    terminalreporter.line(f"{len(landed)} kills")
