"""Other engines take over a dead engine's trajectories before a new engine replaces it and before its lease ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from faulty_run import FaultyRun
from observed_messages import Sighting
from tests.emulated import emulated

from rljob_core.records import SiblingReset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_its_work_is_given_out_again_at_once(start: Callable[..., FaultyRun]) -> None:
    """First an engine is lost with the process that watches it, then another one alone."""
    # Every engine has work all the time: each response takes seconds, and the job goes on for long enough.
    run = start("dead engine", steps=14, **emulated(decode_seconds=0.4))
    run.watch()
    reasons = []
    for alone in (False, True):
        pod, pid = run.victim("rollout")
        reasons += lose(run, pod, psutil.Process(pid).children()[0].pid if alone else pid)
        run.until_back({pod: pid})
    # Only the second one could be reported.
    assert [reason for reason in reasons if "exit code 137 (SIGKILL" in reason] == reasons[1:]
    run.finish()


def lose(run: FaultyRun, pod: str, pid: int) -> list[str]:
    """Kill a process of an engine's pod, and wait until its work is given out again; the reason in the ledger."""
    engines = run.seen.seen.engines
    run.until("its own signal", lambda: any(engine.startswith(f"{pod}.") for engine in set(engines)))
    known, new, reasons = set(engines), set[str](), list[str]()

    def lost(said: Sighting) -> bool:
        found = isinstance(said, SiblingReset) and said.reason == "EngineLost"
        if found and not reasons:
            assert isinstance(said, SiblingReset)
            reasons.append(said.detail)
            new.update(set(engines) - known)  # at this moment
        return found

    again = run.seen.wait_for(lost)
    os.kill(pid, signal.SIGKILL)
    run.until("its work is given out again", again.done)
    assert not [engine for engine in new if engine.startswith(f"{pod}.")], "its successor came first"
    run.say(
        f"a process of {pod} was killed, and its work given out again: {reasons[0] or 'no reason is known'}"
    )
    return reasons
