"""Stores the trajectories that the engine completes, and reports the requests that it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from rljob_core.errors import GenerationFailed
from rljob_core.ports import Completed, Engine, Stopped
from rljob_core.trajectory import Segment, Source, Trajectory, VersionSpan, group_of
from rljob_runtime.engines.output_checks import output_fault
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.messaging.waiting_publisher import retry_while_full
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.running import Running, request_id

log = logging.getLogger(__name__)

#: Calls of `TrajectoryStore.put` that may be under way before the engine's next events have to wait.
PUTS_IN_FLIGHT = 16


class TrajectoryPublisher:
    """Turns the engine's events into stored trajectories.

    Args:
        trajectories: where they are stored.
        engine: whose events are read.
        assignments: of the engine instance.
        progress: publishes progress; what has ended is deleted there.
        status_changed: set when the engine becomes idle, so that the next heartbeat is sent at once.
        instance: name of the engine instance.

    Attributes:
        newest_sequence: sequence of the newest message of trajectories; 0 before the first.
        closing: whether the engine's events are about to end, which is then no failure.
    """

    def __init__(
        self,
        trajectories: TrajectoryStore,
        engine: Engine,
        assignments: Assignments,
        progress: ProgressPublisher,
        *,
        status_changed: asyncio.Event,
        instance: str,
    ) -> None:
        self._trajectories = trajectories
        self._engine = engine
        self._assignments = assignments
        self._progress = progress
        self._status_changed = status_changed
        self._instance = instance
        self.newest_sequence = 0
        self.closing = False

    async def publish(self) -> None:
        """Handle the engine's events until it is closed; return once all trajectories are stored.

        Raises:
            GenerationFailed: the engine failed.
        """
        assignments = self._assignments
        window = asyncio.Semaphore(PUTS_IN_FLIGHT)
        async with asyncio.TaskGroup() as puts:
            while True:
                trajectories: list[Trajectory] = []
                try:
                    events = await self._engine.events()
                except GenerationFailed:
                    if not self.closing:
                        raise
                    return
                for event in events:
                    running = assignments.running.pop(event.id, None)
                    if running is None:
                        continue
                    if isinstance(event, Completed) and (fault := self._fault(running, event)):
                        event = Stopped(event.id, f"InvalidOutput: {fault}", failure=True)  # noqa: PLW2901
                    if isinstance(event, Completed):
                        assignments.storing.add(event.id)
                        trajectories.append(self._trajectory(running, event))
                    else:
                        await self._progress.delete([event.id])
                        await assignments.report_ended(running.work, event)
                if trajectories:
                    # The next events do not wait for this acknowledgement, but a full store delays them.
                    await window.acquire()
                    puts.create_task(self._put(trajectories, window))
                assignments.changed.set()
                if not assignments.running:
                    self._status_changed.set()

    def _fault(self, running: Running, completed: Completed) -> str:
        """What is wrong with a response, and whose it is; empty if nothing is."""
        fault = output_fault(completed, self._progress.limits(completed.id, running.work))
        if fault:
            log.warning("the engine's response to %s is refused: %s", completed.id, fault)
        return f"engine {self._instance} gave a response that cannot be: {fault}" if fault else ""

    async def _put(self, trajectories: Sequence[Trajectory], window: asyncio.Semaphore) -> None:
        # A message holds siblings of one group, which end together: the end of a group frees all that it takes.
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(group_of(trajectory.id), []).append(trajectory)
        puts = (retry_while_full(partial(self._trajectories.put, group)) for group in groups.values())
        self.newest_sequence = max(self.newest_sequence, *await asyncio.gather(*puts))
        requests = [request_id(t.id, t.attempt) for t in trajectories]
        self._assignments.storing.difference_update(requests)
        window.release()
        await self._progress.delete(requests)

    def _trajectory(self, running: Running, completed: Completed) -> Trajectory:
        prompt, work = running.prompt, running.work
        size = len(prompt)
        given = Segment(
            Source.PROMPT,
            prompt,
            np.zeros(size, np.uint8),
            np.zeros(size, np.float32),
            np.full(size, -1, np.int32),
        )
        generated = Segment(
            Source.MODEL,
            np.asarray(completed.tokens, np.int32),
            np.ones(len(completed.tokens), np.uint8),
            np.asarray(completed.logprobs, np.float32),
            np.asarray(completed.versions, np.int32),
        )
        span = VersionSpan(int(generated.versions.min()), int(generated.versions.max()))
        return Trajectory(
            id=work.trajectory,
            attempt=work.attempt,
            prompt=work.prompt,
            segments=(given, generated),
            span=span,
            finish=completed.finish,
            engine=self._instance,
            sample=work.sample,
        )
