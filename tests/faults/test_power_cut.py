"""The power of the whole machine is cut at moments of a step: what was not synced is lost, and the job continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from block_device import Disk
from boundaries import BOUNDARIES
from faulty_run import FaultyRun
from tests.emulated import emulated
from tests.night import some

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

#: Steps before a cut, so that there are commits, checkpoints and synced streams to lose the end of.
STEPS = 3


def test_the_power_is_cut_in_a_step(disk_of: Callable[[str], Disk], start: Callable[..., FaultyRun]) -> None:
    disk = disk_of("power cut")
    cuts = some(BOUNDARIES, 2)
    run = start("power cut", steps=STEPS * (len(cuts) + 1) + 6, **emulated())
    for number, boundary in enumerate(cuts, start=1):
        run.watch(STEPS * number)
        run.lose_power(boundary, disk)
        run.resume()
    run.finish()
