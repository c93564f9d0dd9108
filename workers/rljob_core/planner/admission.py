"""How much is begun ahead of the trainer: work for later steps waits for the newest weights.

A trajectory that is begun under weights which will be replaced before it is trained is staler by as many versions as it
waits. While the trainer has a whole step to train, nothing that is begun would reach it sooner, so that only `window`
times a step's batch is begun ahead: enough for the trainer to find groups when it turns to the next step. What comes
after it is begun under newer weights, and η is left to stragglers.

The longer the trainer waits for groups, the more is begun ahead. Where the engines are the bottleneck, it waits during
most of a step. Then everything that η allows is begun as long as it waits: idle engines would cost throughput, and what
they make is trained soon.

The current step's trajectories are never held back: `Admission.admits` is true of them whatever else is the case.
"""

from __future__ import annotations

from rljob_core.job_state import JobState
from rljob_core.spec import RLJobSpec
from rljob_core.staleness import Buffer, EntryState

STARVED = 0.8
"""Share of a step's time that passes until the trainer has all of its groups, from which engines are the bottleneck."""
_FED = 0.4
"""Waiting share below which the trainer counts as busy. Half of what it waits beyond is added to the window."""
_MEMORY_STEPS = 4


class Admission:
    """Measures for how long the trainer waits for a step's groups, and says what may be begun.

    Nothing of this is in the ledger: a new coordinator measures again, and holds back more until it has.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._whole: float | None = None
        self._waited = self._lasted = 0.0  # seconds, of older steps less

    @property
    def waits(self) -> float:
        """Share of the newest steps' time that passed until the trainer had all of a step's groups."""
        return self._waited / self._lasted if self._lasted else 0.0

    @property
    def trainer_starves(self) -> bool:
        """Whether the trainer waits for groups during most of a step."""
        return self.waits > STARVED

    def step_is_whole(self, now: float) -> None:
        """The trainer was sent the last groups of the current step, at `now` seconds."""
        self._whole = now

    def committed(self, now: float) -> None:
        """The current step was committed, at `now` seconds."""
        began, whole, self._began, self._whole = self._began, self._whole, now, None
        if began is not None and whole is not None and began <= whole <= now and began < now:
            self._waited += whole - began - self._waited / _MEMORY_STEPS
            self._lasted += now - began - self._lasted / _MEMORY_STEPS

    def admits(self, state: JobState, spec: RLJobSpec, buffer: Buffer, *, beginning: int = 0) -> bool:
        """Whether a trajectory of this buffer may be begun now.

        Args:
            state: of the job.
            spec: of the job.
            buffer: an open one.
            beginning: how many trajectories are being begun, of which the state does not know yet.
        """
        current, window = state.buffers.current, spec.pipeline.window
        if current is None or buffer.step <= current.step or not window:
            return True
        batch = current.capacity * spec.data.group_size
        wider = window * (1 + max(0.0, self.waits - _FED) / 2)
        if state.started + beginning < (1 + wider) * batch:
            return True
        lacks = current.free > 0 or current.count(EntryState.RESERVED) > 0
        return lacks and self.trainer_starves
