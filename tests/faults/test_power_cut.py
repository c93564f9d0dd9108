"""The power of the whole machine is cut at moments of a step: what was not synced is lost, and the job continues."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from block_device import Disk
from boundaries import BOUNDARIES
from faulty_run import FaultyRun, emulated
from tests.draw import draw

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        os.geteuid() != 0 and not os.environ.get("RLJOB_E2E_REQUIRED"),
        reason="mounting a file system needs root",
    ),
]

#: Steps before a cut, so that there are commits, checkpoints and synced streams to lose the end of.
STEPS = 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk on which the test's run keeps its whole folder."""
    made = Disk(tmp_path / "disk.img", tmp_path / "power-cut" / "run")
    yield made
    made.unmount()


def test_the_power_is_cut_in_a_step(disk: Disk, start: Callable[..., FaultyRun]) -> None:
    cuts = draw("power cuts", BOUNDARIES, 4)
    run = start("power cut", steps=STEPS * (len(cuts) + 1) + 6, **emulated())
    for number, boundary in enumerate(cuts, start=1):
        run.watch(STEPS * number)
        run.lose_power(boundary, disk)
        run.resume()
    run.finish()
