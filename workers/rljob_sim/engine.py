"""A simulated engine, with the rollout worker around it: it takes work, generates it step by step, swaps weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from rljob_core.emulation import EngineBatch, EngineSequence
from rljob_core.messages import LONGEST, EngineSignal, Generate
from rljob_core.spec import Inflight, SwapTime
from rljob_core.trajectory import VersionSpan, sibling_of
from rljob_core.weight_sync import WeightSync
from rljob_sim.clock import VirtualClock
from rljob_sim.measured_lengths import AnswerLengths, MeasuredLengths
from rljob_sim.scenario import EngineKind
from rljob_sim.timeline import GENERATING, SWAPPING, WAITING, Timeline


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedResponse(EngineSequence):
    """A sequence with the work that asks for it.

    Attributes:
        work: that asks for it.
        oldest: version of its oldest token; -1 before it has one.
    """

    work: Generate
    oldest: int = -1


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """A response that an engine generates no more: a whole one, or what another engine is to continue."""

    work: Generate
    span: VersionSpan
    tokens: int


class SimulatedEngine:
    """An engine of a kind.

    Args:
        inflight: what becomes of running sequences when weights are swapped.
        swap_time: when it takes new weights.
        prompt_tokens: of each prompt.
        progress_tokens: `spec.rollout.progressTokens`.
        generated: called with the responses that have ended, at the time at which they ended.
        restarted: called with work that starts over, as new weights came.
        swapped: called when it has new weights.
        timeline: which its phases are written to.

    Attributes:
        busy: seconds in which it made steps.
        work: seconds times running sequences, over its slots: full engines do the most.
    """

    def __init__(
        self,
        clock: VirtualClock,
        name: str,
        kind: EngineKind,
        *,
        inflight: Inflight,
        swap_time: SwapTime,
        lengths: AnswerLengths,
        prompt_tokens: int,
        progress_tokens: int,
        generated: Callable[[list[EndedResponse]], None],
        restarted: Callable[[SimulatedEngine, list[Generate]], None],
        swapped: Callable[[SimulatedEngine], None],
        timeline: Timeline | None = None,
    ) -> None:
        self.name, self.kind = name, kind
        self.version = -1
        self.busy = self.work = 0.0
        self._clock = clock
        self._inflight = inflight
        self._lengths, self._prompt_tokens = lengths, prompt_tokens
        self._progress_tokens = progress_tokens
        self._generated, self._restarted, self._swapped = generated, restarted, swapped
        self._timeline = timeline
        self._batch: EngineBatch[SimulatedResponse] = EngineBatch(
            slots=kind.slots,
            profile=kind.profile,
            begin=self._begin,
            prefill_seconds=kind.prefill_seconds,
            kv_tokens=kind.kv_tokens,
            preempted=self._note_version,
        )
        self._parked: list[Generate] = []
        self._sync = WeightSync(SwapTime.AT_ONCE if kind.site else swap_time, kind.recompute_cache)
        self._newest = -1
        """The newest version that was announced."""
        self._taking = -1
        """The version for which it stands still."""
        self._since = 0.0
        self._planned = 0  # number of the plan in force; those before it are void
        self._standing = False

    def submit(self, items: Iterable[Generate]) -> None:
        """Take work; what needs newer weights waits for them."""
        for work in items:
            if work.min_version > self.version:
                self._parked.append(work)
            else:
                self._add(work)
        if self._is_due or (self._batch.waiting and len(self._batch.running) < self.kind.slots):
            self._change()
        self._note_phase()

    def cancel(self, keys: Sequence[tuple[str, int]]) -> None:
        """Forget this work: trajectories with their attempts."""
        ids = {_id(*key) for key in keys}
        self._parked = [w for w in self._parked if _id(w.trajectory, w.attempt) not in ids]
        if self._batch.cancel(ids):
            self._change()

    def release(self, keys: Sequence[tuple[str, int]]) -> list[EndedResponse]:
        """Give back what runs of these: trajectories with their attempts."""
        ids, step = {_id(*key) for key in keys}, self._batch.step + self._begun()
        released = [
            EndedResponse(r.work, VersionSpan(self._oldest(r), self._batch.versions[-1][1]), r.tokens(step))
            for r in self._batch.running
            if r.id in ids and not r.cancelled and r.before < r.tokens(step) < r.length
        ]
        self.cancel([(r.work.trajectory, r.work.attempt) for r in released])
        return released

    def load(self, version: int) -> None:
        """Use the weights of a version, if it is newer."""
        if version > self._newest:
            self._newest = version
            self._sync.announced(version, self._clock.now)
            if self._is_due:
                self._change()

    def signal(self) -> EngineSignal:
        """Its heartbeat now."""
        batch = self._batch
        begun = self._begun()
        return EngineSignal(
            engine=self.name,
            pool=self.kind.name,
            epoch=0,
            version=self.version,
            held=len(batch.running) + len(batch.waiting) + len(self._parked),
            slots=self.kind.slots,
            running=len(batch.running),
            waiting=len(batch.waiting) + len(self._parked),
            tokens=batch.generated + begun * len(batch.running),
            profile=self.kind.profile,
            context=batch.context + begun * len(batch.running),
            kv_tokens=self.kind.kv_tokens,
            longest=self._longest(batch.step + begun),
            site=self.kind.site,
            announced=self._newest,
        )

    @property
    def _ends_first(self) -> bool:
        """Whether what has begun ends before the newest weights are taken."""
        return self._inflight == Inflight.KEEP and self._newest > self.version

    @property
    def _is_due(self) -> bool:
        """Whether it takes the newest weights now."""
        behind, batch = self._newest - self.version, self._batch
        if behind <= 0 or (self._ends_first and batch.has_begun):
            return False
        return self._sync.is_due(
            behind, context=batch.cached, idle=not batch.has_begun, needed=bool(self._parked)
        )

    def _longest(self, step: int) -> tuple[tuple[str, int, int], ...]:
        """As the rollout worker names them: by the progress that it has stored."""
        every = self._progress_tokens
        if not every:
            return ()
        stored = [
            (r.work.trajectory, r.work.attempt, r.tokens(step) // every * every) for r in self._batch.running
        ]
        return tuple(nlargest(LONGEST, (s for s in stored if s[2]), key=lambda s: s[2]))

    # ------------------------------------------------------------------------------------------ the steps

    def _begun(self) -> int:
        if not self._batch.running or self._standing:
            return 0
        steps = self._batch.durations().steps(self._clock.now - self._since)
        return min(int(steps), self._batch.remaining())

    def _change(self) -> None:
        """Something changed: it takes effect when the step under way has ended."""
        if self._standing:
            return
        batch = self._batch
        if not batch.running:
            self._since = self._clock.now
            self._between_steps()
            return
        begun = batch.durations().steps(self._clock.now - self._since)
        self._plan(min(max(1, math.ceil(begun - 1e-6)), batch.remaining()))

    def _plan(self, steps: int) -> None:
        self._planned += 1
        number = self._planned

        def ended() -> None:
            if number == self._planned:
                self._advance(steps)

        self._clock.at(self._since + self._batch.durations().seconds(steps), ended)

    def _advance(self, steps: int) -> None:
        batch = self._batch
        seconds, running = batch.durations().seconds(steps), len(batch.running)
        self._since += seconds
        self.busy += seconds
        self.work += seconds * running / self.kind.slots
        ended = [
            EndedResponse(r.work, VersionSpan(self._oldest(r), batch.versions[-1][1]), r.length)
            for r in batch.advance(steps)
            if not r.cancelled
        ]
        self._between_steps()
        if ended:
            self._generated(ended)

    def _between_steps(self) -> None:
        batch = self._batch
        batch.clean()
        if self._is_due:
            if self.kind.swap_seconds:
                self._standing, self._taking = True, self._newest
                self._note_phase()
                self._since += self.kind.swap_seconds
                self._planned += 1
                self._clock.at(self._since, self._stood)
                return
            self._use(self._newest)
            self._between_steps()
            return
        batch.admit(preempted_only=self._ends_first)
        if batch.running:
            self._plan(batch.remaining())
        self._note_phase()

    def _note_phase(self) -> None:
        """Write what it does from now on."""
        if self._timeline is None:
            return
        running = len(self._batch.running)
        if self._standing:
            what = SWAPPING
        elif running:
            what = GENERATING
        else:
            what = WAITING if self._parked else ""
        self._timeline.enter(self.name, self._clock.now, what, version=self.version)
        self._timeline.count(self.name, self._clock.now, 0 if self._standing else running)

    def _stood(self) -> None:
        self._standing = False
        self._batch.clean()
        self._use(self._taking)
        self._between_steps()

    def _use(self, version: int) -> None:
        if self._inflight == Inflight.RESTART and (stopped := self._batch.stop()):
            self._restarted(self, [r.work for r in stopped])
        self.version = version
        context = self._batch.cached
        recompute = self._sync.recomputes(context)
        self._batch.use(version, recompute=recompute)
        self._sync.stood(self.kind.swap_seconds)
        if recompute:
            self._sync.recomputed(context * self.kind.prefill_seconds, context)
        else:
            self._sync.kept()
        ready = [work for work in self._parked if work.min_version <= version]
        self._parked = [work for work in self._parked if work.min_version > version]
        for work in ready:
            self._add(work)
        self._swapped(self)

    # ------------------------------------------------------------------------------------------ sequences

    def _add(self, work: Generate) -> None:
        key = str(work.prompt)
        response = SimulatedResponse(_id(work.trajectory, work.attempt), key, self._prompt_tokens, work=work)
        if work.inherited is not None:
            response.before, response.oldest = work.inherited.tokens, work.inherited.span.min
        self._batch.add(response)

    def _begin(self, response: SimulatedResponse, version: int) -> None:
        work = response.work
        if isinstance(self._lengths, MeasuredLengths):
            length = self._lengths.of_sibling(work.prompt, sibling_of(work.trajectory))
        else:
            length = self._lengths.length(str(work.prompt).encode(), work.seed, version)
        response.length = max(length, response.before + 1)

    def _note_version(self, response: SimulatedResponse) -> None:
        response.oldest = self._oldest(response)

    def _oldest(self, response: SimulatedResponse) -> int:
        """Version of a running response's oldest token."""
        if response.oldest >= 0:
            return response.oldest
        return next(version for step, version in reversed(self._batch.versions) if step <= response.first)


def _id(trajectory: str, attempt: int) -> str:
    return f"{trajectory}/{attempt}"
