"""Other engines take over a dead engine's trajectories before a new engine replaces it and before its lease ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from faulty_run import FaultyRun, emulated
from observed_messages import Sighting

from rljob_core.records import SiblingReset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_its_work_is_given_out_again_at_once(start: Callable[..., FaultyRun]) -> None:
    # Every engine has work all the time: each response takes seconds.
    run = start("dead engine", steps=6, **emulated(decode_seconds=0.4))
    run.watch()
    pod, pid = run.victim("rollout")
    engines = run.seen.seen.engines
    run.until("its own signal", lambda: any(engine.startswith(f"{pod}.") for engine in set(engines)))
    known, new = set(engines), set[str]()

    def lost(said: Sighting) -> bool:
        found = isinstance(said, SiblingReset) and said.reason == "EngineLost"
        if found:
            new.update(set(engines) - known)  # at this moment
        return found

    again = run.seen.wait_for(lost)
    os.kill(pid, signal.SIGKILL)
    run.until("its work is given out again", again.done)
    assert not [engine for engine in new if engine.startswith(f"{pod}.")], "its successor came first"
    run.say(f"{pod} was killed, and its work given out again")
    run.finish()
