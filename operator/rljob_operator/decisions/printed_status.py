"""What `kubectl get rljob` prints of a job in two columns: how it is, in a few words, and how far it has come.

Both change only when the job does: no figure in them changes by itself.
"""

from __future__ import annotations

from rljob_core.spec import Mode, RLJobSpec, RLJobStatus
from rljob_operator.decisions.conditions import condition

_ENDED = ("Failed", "Succeeded", "Suspended")
_STARVED = {"TrainerStarved": "trainer", "RolloutStarved": "engines"}


def printed(status: RLJobStatus, spec: RLJobSpec) -> RLJobStatus:
    """The status with `state` and `progress`, of its conditions and its step.

    A job that has succeeded is not written again because its spec changes: it came as far as it came.
    """
    state, progress = _state(status, spec.pipeline.mode), status.progress or ""
    if state != "Succeeded" or progress.partition("/")[0] != str(status.step):
        # More than spec.steps, if that was lowered below what had begun.
        progress = f"{status.step}/{max(spec.steps, status.step)}"
    return status.model_copy(update={"state": state, "progress": progress})


def _state(status: RLJobStatus, mode: Mode) -> str:
    true = {found.type: found.reason for found in status.conditions if found.status == "True"}
    for kind in _ENDED:
        if kind in true:
            if kind == "Suspended" and true[kind] != "SuspendedByUser":
                return true[kind]  # by the queue that it waits in
            return f"{kind}: {true[kind]}" if kind == "Failed" else kind
    if "Stalled" in true:
        return f"Stalled: {true['Stalled']}"
    if "Ready" not in true:
        ready = condition(status, "Ready")
        return "Waiting" if ready is None else f"Waiting: {ready.reason}"
    # In Synchronous mode one side always waits for the other: nothing is wrong.
    starved = [who for kind, who in _STARVED.items() if kind in true] if mode != Mode.SYNCHRONOUS else []
    return f"Starved: {', '.join(starved)}" if starved else "Ready"
