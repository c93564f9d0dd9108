"""Stores the trajectories that the engine completes, and reports the requests that it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rljob_core.errors import GenerationFailed
from rljob_core.ports import Completed, Engine, Stopped
from rljob_core.trajectory import Source, Trajectory, group_of
from rljob_runtime.engines.output_checks import output_fault
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.messaging.waiting_publisher import retry_while_full
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.engine_metrics import EngineMetrics
from rljob_runtime.roles.rollout.episodes import RESTARTED, Episodes
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.running import Running, generated, given, request_id, span_of

log = logging.getLogger(__name__)

#: Calls of `TrajectoryStore.put` that may be under way before the engine's next events have to wait.
PUTS_IN_FLIGHT = 16
#: Seconds for which an engine at a site waits for room for its last word; its pod has 60 to end.
LAST_WORD_SECONDS = 20.0


class TrajectoryPublisher:
    """Turns the engine's events into stored trajectories.

    Args:
        trajectories: where they are stored.
        engine: whose events are read.
        assignments: of the engine instance.
        progress: publishes progress; what has ended is deleted there.
        status_changed: set when the engine becomes idle, so that the next heartbeat is sent at once.
        instance: name of the engine instance.
        metrics: of the engine instance.
        site: where it is; empty for the hub.
        episodes: of the engine instance, if the job has an environment.

    Attributes:
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
        metrics: EngineMetrics,
        site: str = "",
        episodes: Episodes | None = None,
    ) -> None:
        self._patience = LAST_WORD_SECONDS if site else None
        self._trajectories = trajectories
        self._engine = engine
        self._assignments = assignments
        self._progress = progress
        self._status_changed = status_changed
        self._instance = instance
        self._metrics = metrics
        self._episodes = episodes
        self.closing = False

    async def publish(self) -> None:
        """Handle the engine's events until it is closed; return once all trajectories are stored.

        Raises:
            GenerationFailed: the engine failed.
        """
        assignments = self._assignments
        window = asyncio.Semaphore(PUTS_IN_FLIGHT)
        async with asyncio.TaskGroup() as puts:
            if self._episodes is not None:

                async def store(trajectory: Trajectory) -> None:
                    await window.acquire()
                    await self._put([trajectory], window)

                self._episodes.use(puts, store)
            while True:
                trajectories: list[Trajectory] = []
                try:
                    events = await self._engine.events()
                except GenerationFailed:
                    if not self.closing:
                        raise
                    if self._episodes is not None:
                        self._episodes.cancel()
                    return
                for event in events:
                    running = assignments.running.pop(event.id, None)
                    if running is None:
                        continue
                    if isinstance(event, Completed) and (fault := self._fault(running, event)):
                        event = Stopped(event.id, "InvalidOutput", failure=True, detail=fault)  # noqa: PLW2901
                    if self._episodes is not None:
                        if isinstance(event, Completed) and self._episodes.is_restarted(event):
                            event = Stopped(event.id, RESTARTED, failure=False)  # noqa: PLW2901
                        if self._episodes.turns.took(event, running):
                            continue
                        if isinstance(event, Completed):
                            self._play(self._episodes, running, event)
                            continue
                    self._metrics.ended(completed=isinstance(event, Completed))
                    if isinstance(event, Completed):
                        assignments.answered(event.id, running)
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

    async def end(self) -> None:
        """Store the message that no trajectory of this engine follows, once `publish` has returned.

        A site's stream may be full for as long as its link is cut. The engine then ends without that message: the
        coordinator learns from the site itself that all of it is there.
        """
        try:
            async with asyncio.timeout(self._patience):
                await retry_while_full(partial(self._trajectories.put_end, self._instance))
        except TimeoutError:
            log.warning(
                "the stream of trajectories is full: engine %s ends without its last word", self._instance
            )

    def _play(self, episodes: Episodes, running: Running, completed: Completed) -> None:
        """Have an episode played whose first response is there, unless the engine is about to be closed."""
        self._progress.unfollow([completed.id])  # nothing of an episode is stored before its end
        if not self.closing:
            episodes.begin(running, completed)

    def _fault(self, running: Running, completed: Completed) -> str:
        """What is wrong with a response, and whose it is; empty if nothing is."""
        limits = self._progress.limits(completed.id, running.work)
        if running.earlier:  # a later turn of an episode, which has the rest of its tokens
            rest, oldest = limits.max_tokens - running.earlier, max(limits.oldest, running.oldest)
            limits = replace(limits, max_tokens=rest, oldest=oldest)
        fault = output_fault(completed, limits)
        if fault:
            log.warning("the engine's response to %s is refused: %s", completed.id, fault)
        return f"engine {self._instance} gave a response that cannot be: {fault}" if fault else ""

    async def _put(self, trajectories: Sequence[Trajectory], window: asyncio.Semaphore) -> None:
        # A message holds siblings of one group, which end together: the end of a group frees all that it takes.
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(group_of(trajectory.id), []).append(trajectory)
        puts = (retry_while_full(partial(self._trajectories.put, group)) for group in groups.values())
        with self._metrics.storing():
            await asyncio.gather(*puts)
        requests = [request_id(t.id, t.attempt) for t in trajectories]
        self._assignments.storing.difference_update(requests)
        window.release()
        await self._progress.delete(requests)

    def _trajectory(self, running: Running, completed: Completed) -> Trajectory:
        work, response = running.work, generated(completed)
        return Trajectory(
            id=work.trajectory,
            attempt=work.attempt,
            prompt=work.prompt,
            segments=(given(Source.PROMPT, running.prompt), response),
            span=span_of(response),
            finish=completed.finish,
            engine=self._instance,
            sample=work.sample,
        )
