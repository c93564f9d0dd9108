"""Stops processes (SIGSTOP) for longer than every timeout and resumes them, also after they were replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from boundaries import BOUNDARIES, ROLES
from faulty_run import FaultyRun, apart, signal_pods
from kill_locations import commits, epochs
from tests.emulated import emulated
from tests.night import chance, some
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

# Leases are 10 s, acknowledgements up to 30 s, and a server is waited for for 60 s.
FROZEN_SECONDS = {"nats-server": 75.0, "coordinator": 45.0, "trainer": 45.0, "reward": 45.0, "rollout": 45.0}
AT = {boundary.name: boundary for boundary in BOUNDARIES}


def test_each_role_continues_after_it_stood_still(start: Callable[..., FaultyRun]) -> None:
    """At once, each in a run of its own: they mostly wait. A commit freezes three of the five."""
    roles = some(ROLES, 3)

    def frozen(role: str) -> None:
        # One engine that stands still does not stop the others: their job must outlast it.
        steps, seconds = (80, 1.0) if role == "rollout" else (40, 0.3)
        run = start(f"{role} frozen", steps=steps, **emulated(step_seconds=seconds))
        run.watch()
        time.sleep(chance(f"frozen {role}").uniform(0.0, 1.0))
        name, pid = run.victim(role)
        reached = run.seen.seen.committed
        signal_pods([pid], signal.SIGSTOP)
        run.say(f"step {reached}: froze {name}")
        time.sleep(FROZEN_SECONDS[role])
        if role == "rollout":
            run.until("steps by the other engine alone", lambda: run.seen.seen.committed > reached + 10)
        signal_pods([pid], signal.SIGCONT)
        run.say(f"step {run.seen.seen.committed}: let {name} go on")
        assert run.process.poll() is None, "the job was over before it went on"
        run.finish()

    with ThreadPoolExecutor(len(roles)) as pool:
        list(pool.map(frozen, roles))


# Of each role a commit freezes one.
AT_COORDINATOR = [("coordinator", "proposed"), ("coordinator", "committed")]
AT_TRAINER = [("trainer", "fed"), ("trainer", "weights written")]
REPLACED = [*some(AT_COORDINATOR, 1), *some(AT_TRAINER, 1)]


@pytest.mark.parametrize(("role", "boundary"), REPLACED)
def test_one_that_was_replaced_stops_by_itself_and_harms_nothing(
    start: Callable[..., FaultyRun], role: str, boundary: str
) -> None:
    changes = emulated()
    containers = [{"name": role, "command": apart(role)}]
    section: dict[str, Any] = changes.setdefault(role, {})
    section["template"] = {"spec": {"containers": containers}}
    run = start(f"{role} replaced", steps=120, **changes)  # it goes on until the other has ended
    run.watch(2)
    pod, wrapper = run.victim(role)
    (worker,) = psutil.Process(wrapper).children()
    try:
        run.freeze_at(AT[boundary], worker.pid)
        os.kill(wrapper, signal.SIGKILL)
        run.say(f"{boundary}: froze {pod}, which is taken for dead")
        run.until("a replacement", lambda: run.replaced({pod: wrapper}))
        reached = run.seen.seen.committed
        run.until("two more steps", lambda: run.seen.seen.committed >= reached + 2)
        assert worker.status() == psutil.STATUS_STOPPED
        worker.resume()
        run.say(f"step {run.seen.seen.committed}: let it go on beside the other")
        worker.wait(patience())
        run.say("it has ended by itself")
        assert run.process.poll() is None
    finally:
        if worker.is_running():
            worker.kill()
    log = (run.output / "logs" / f"{pod}.log").read_text()
    # What a dead trainer was writing is swept away by its successor.
    assert "fenced:" in log or (boundary == "weights written" and "cannot write the weights" in log), log
    ledger = run.finish()
    assert commits(ledger) == list(range(1, run.steps_wanted + 1))
    assert epochs(ledger) == (2 if role == "coordinator" else 1), "whoever took over was disturbed"
