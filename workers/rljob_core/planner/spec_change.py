"""A spec that the user changed while the job runs, where the change restarts no coordinator: it goes into the ledger.

The coordinator decides nothing by such a field, except that it follows where pools are, and how many episodes an engine
may have open. With the record, the audit can
compare it with what user and pods have.
"""

from __future__ import annotations

from typing import Any

from rljob_core.coordinator_reads import read_by_coordinator
from rljob_core.planner.context import PlannerContext
from rljob_core.records import SpecInForce
from rljob_core.spec import RLJobSpec


def spec_in_force(spec: RLJobSpec) -> SpecInForce:
    """The record of a spec, with defaults filled in."""
    return SpecInForce(_values(spec))


def on_spec_changed(context: PlannerContext, spec: RLJobSpec) -> None:
    """Record the user's newest spec if it differs from the newest one in the ledger.

    `spec.pipeline` stays as it is: `PipelineSet` records its changes, once they have their storage. A spec in which a
    field differs that the coordinator reads is not in force here: the operator replaces the coordinator, and its
    successor's claim records the spec.
    """
    if context.state.finished is not None:
        return
    # A job that is suspended has no coordinator: the next one says that it is not.
    kept = {"suspend": context.spec.suspend, "pipeline": context.spec.pipeline}
    new = spec.model_copy(update=kept)
    before, after = _values(context.spec), _values(new)
    if before == after or read_by_coordinator(before) != read_by_coordinator(after):
        return
    context.spec = new
    context.sites.follow(new.rollout.pool_sites)
    context.emit(spec_in_force(new))


def _values(spec: RLJobSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)
