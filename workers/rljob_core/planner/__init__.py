"""The coordinator's decisions, as one deterministic function of its observations: `Planner.decide`."""

from rljob_core.planner.context import Decision
from rljob_core.planner.planner import Planner

__all__ = ["Decision", "Planner"]
