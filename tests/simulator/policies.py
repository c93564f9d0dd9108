"""Policies of dispatch, each of which a test can leave out of the real planner."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from rljob_core.planner import balancing
from rljob_core.planner.placement import Placement
from rljob_sim.engine import SimulatedEngine

PROFILE, PARTED, RANKER, MOVES, WINDOW = "by profile", "siblings apart", "longest first", "moves", "window"
POLICIES = (PARTED, PROFILE, RANKER, MOVES, WINDOW)
CORRELATION = 0.7
"""Rank correlation that the shipped predictor reaches on prompts of one kind and varying difficulty."""


@contextmanager
def only(*policies: str) -> Any:
    """Let the planner have these policies alone.

    Without any, dispatch is what it was at commit 98acadc: each group as a whole goes to the engine with the most free
    slots, in the order of prompts, as soon as η allows. The one difference is that a trajectory of a later step, also
    here, begins under the newest weights.
    """
    with ExitStack() as stack:
        if PROFILE not in policies:
            truth = SimulatedEngine.signal
            stack.enter_context(
                patch.object(SimulatedEngine, "signal", lambda engine: replace(truth(engine), profile=None))
            )
        if PARTED not in policies:
            stack.enter_context(patch.object(Placement, "_prefill_outweighs", lambda *_: True))
        if MOVES not in policies:
            stack.enter_context(patch.object(balancing, "MOST_MOVES", 0))
        yield
