"""Experiment trackers store a job's metrics elsewhere. This module is what authors of trackers import.

A tracker of one's own implements the protocol `Tracker` and is offered as an entry point `rljob.trackers`: a callable
`(run, *, options)` that returns one. Its `missing`, if it has one, returns what has to be installed for it. A tracker
that stores samples has `log_samples(table)`, too.
"""

from rljob_core.errors import SpecError
from rljob_core.ports import SampleTable, TrackedPoint, TrackedRun, Tracker
from rljob_runtime.trackers.registry import check_tracker, create_tracker

__all__ = [
    "SampleTable",
    "SpecError",
    "TrackedPoint",
    "TrackedRun",
    "Tracker",
    "check_tracker",
    "create_tracker",
]
