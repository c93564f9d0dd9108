"""What all suites share: a real nats-server for each test process, and the order in which tests begin."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator

import pytest
from e2e.harness.nats_server import EmbeddedServer
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests import night
from tests.second_try import pytest_runtest_logreport, pytest_runtest_makereport

__all__ = ["pytest_runtest_logreport", "pytest_runtest_makereport"]  # pytest finds these hooks here

pytest_plugins = ["e2e.harness.fixtures"]  # a real API server, shared by the processes of a session

gc.set_threshold(
    50_000
)  # what test modules import lives on, so that looking for garbage in it is a waste of seconds

# Speed is the machine's, which tests share.
settings.register_profile(
    "every commit",
    deadline=None,
    max_examples=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("night", settings.get_profile("every commit"), max_examples=2000, derandomize=False)
settings.load_profile("night" if night.NIGHT else "every commit")
if not night.NIGHT:
    # Examples also hold constants of the modules that are loaded, which depend on the tests that ran before.
    providers._get_local_constants = providers.Constants


def pytest_report_header() -> str:
    """Say which seed this night has: who sees a failure can repeat it by the variable."""
    return f"every case of every sweep, {night.VARIABLE}={night.SEED}" if night.NIGHT else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this commit does not run, and put first what takes longest.

    These are the groups that run in one process, one by one, and mostly wait; and what keeps a processor busy. Each of
    the first is followed by one of the second, so that they run beside each other.
    """
    items.sort(key=_places(items).__getitem__)
    night.leave_out(config, items)


def _places(items: Iterable[pytest.Item]) -> dict[pytest.Item, float]:
    """Where each test stands in the order in which tests begin."""
    places: dict[pytest.Item, float] = {}
    groups: dict[str, float] = {}
    computing = 0.5
    for item in items:
        if group := item.get_closest_marker("xdist_group"):
            places[item] = groups.setdefault(str(group.args[0]), float(len(groups)))
        elif item.get_closest_marker("computes"):
            places[item], computing = computing, computing + 1.0
        else:
            places[item] = float("inf")
    return places


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the shipped configuration, on a port of its own; tests keep apart by subject."""
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())
