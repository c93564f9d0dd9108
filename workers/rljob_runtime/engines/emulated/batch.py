"""The responses of the engine `Emulated`: which of them run in the next decode step, wait or are preempted.

It counts in steps and tokens and knows no clock. Running responses advance together, one token per step. A response
that is preempted keeps its tokens with their log-probabilities and versions; only its KV cache is lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping

import numpy as np

from rljob_core.messages import EngineProfile
from rljob_core.ports import Completed, Progress, Request
from rljob_runtime.engines.emulated.kv_cache import KVCache
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.engines.emulated.response import EmulatedResponse
from rljob_runtime.engines.emulated.step_durations import StepDurations


class EmulatedBatch:
    """All responses of one engine, between two steps.

    Attributes:
        profile: seconds of a step.
        running: responses that run, in the order in which they joined.
        waiting: responses that wait, the next one first. Preempted ones come before all others.
        context: tokens in the contexts of the running ones, prompts included.
        generated: tokens since the start.
        step: number of steps since the start.
    """

    def __init__(self, options: EmulatedEngineOptions) -> None:
        scale = options.time_scale
        self.profile = EngineProfile(
            seconds=scale * options.step_seconds,
            seconds_per_slot=scale * options.step_seconds_per_slot,
            seconds_per_context_token=scale * options.step_seconds_per_context_token,
            steps=0,
        )
        self.running: list[EmulatedResponse] = []
        self.waiting: deque[EmulatedResponse] = deque()
        self.context = self.generated = self.step = 0
        self._options = options
        self._prefill_seconds = scale * options.prefill_seconds_per_token
        self._cache = KVCache(options.kv_tokens, prefix_caching=options.prefix_caching)
        self._prefill = 0  # tokens of contexts that the next step computes
        # (first step, version), as far as running responses need them.
        self._versions: list[tuple[int, int]] = [(0, -1)]

    @property
    def has_begun(self) -> bool:
        """Whether any response has begun and has not ended: it runs, or is preempted."""
        return bool(self.running) or (bool(self.waiting) and self.waiting[0].preempted)

    def add(self, request: Request) -> None:
        """Let a request wait."""
        prompt = np.asarray(request.tokens, np.int32)
        self.waiting.append(EmulatedResponse(request, prompt, prompt.tobytes(), request.inherited))

    def cancel(self, ids: Collection[str]) -> bool:
        """Forget what waits of these, and let what runs leave before the next step; whether any of it runs."""
        self.waiting = deque(r for r in self.waiting if r.request.id not in ids)
        running = [r for r in self.running if r.request.id in ids]
        for response in running:
            response.cancelled = True
        return bool(running)

    def clean(self) -> None:
        """Remove the cancelled responses, and preempt those that joined last until the next step fits."""
        for response in [r for r in self.running if r.cancelled]:
            self._leave(response)
        while self._cache.is_overfull and len(self.running) > 1:
            self._preempt(self.running[-1])

    def use(self, version: int) -> None:
        """Generate with weights of this version from the next step on."""
        oldest = min((r.first for r in self.running), default=self.step)
        self._versions.append((self.step, version))
        while len(self._versions) > 1 and self._versions[1][0] <= oldest:
            del self._versions[0]
        if self._options.recompute_cache:
            self._prefill = self._cache.used

    def stop(self) -> list[EmulatedResponse]:
        """Remove all responses that have begun, and return them."""
        begun = [*self.running, *(r for r in self.waiting if r.preempted)]
        for response in list(self.running):
            self._leave(response)
        self.waiting = deque(r for r in self.waiting if not r.preempted)
        return begun

    def admit(self, *, preempted_only: bool) -> None:
        """Let waiting responses join, in order, while there are slots and room in the cache."""
        while self.waiting and len(self.running) < self._options.slots:
            response = self.waiting[0]
            if preempted_only and not response.preempted:
                return
            fits = self._cache.fits(response.key, len(response.prompt), response.tokens_before)
            if self.running and not fits:  # alone, it runs whether it fits or not
                return
            self._join(self.waiting.popleft())

    def advance(self, steps: int) -> list[EmulatedResponse]:
        """Have done so many steps; returns the responses that end with the last of them, which have left."""
        tokens = steps * len(self.running)
        self.step += steps
        self.context += tokens
        self.generated += tokens
        self._cache.grow(tokens)
        if steps:
            self._prefill = 0
        ended = [r for r in self.running if r.end == self.step]
        for response in ended:
            self._leave(response)
        return ended

    def remaining(self) -> int:
        """Steps until the next running response ends, or until the cache is overfull."""
        steps = min(r.end for r in self.running) - self.step
        fitting = self._cache.steps(len(self.running)) if len(self.running) > 1 else None
        return steps if fitting is None else min(steps, fitting)

    def durations(self) -> StepDurations:
        """Of the next steps of the running responses."""
        running = len(self.running)
        return StepDurations(
            first=self.profile.step(batch=running, context=self.context),
            growth=self.profile.seconds_per_context_token * running,
            prefill=self._prefill_seconds * self._prefill,
        )

    def progress(self, least: Mapping[str, int], *, begun: int) -> list[Progress]:
        """Responses that run or are preempted, and have so many tokens at least, after `begun` steps more."""
        end = self.step + begun
        running = [
            self._progress_of(r, end)
            for r in self.running
            if not r.cancelled and r.tokens(end) >= least.get(r.request.id, math.inf)
        ]
        preempted = [
            r.before
            for r in self.waiting
            if r.preempted and r.before and r.tokens_before >= least.get(r.request.id, math.inf)
        ]
        return [*running, *preempted]

    def completed(self, response: EmulatedResponse) -> Completed:
        """A response that has ended with the last step."""
        progress = self._progress_of(response, response.end)
        return Completed(progress.id, progress.tokens, progress.logprobs, progress.versions, response.finish)

    def _join(self, response: EmulatedResponse) -> None:
        if not response.length:
            response.set_length(self._options.lengths, self._versions[-1][1])
        response.first, response.preempted = self.step, False
        self._prefill += self._cache.add(response.key, len(response.prompt), response.tokens_before)
        self.context += len(response.prompt) + response.tokens_before
        self.running.append(response)

    def _leave(self, response: EmulatedResponse) -> None:
        tokens = response.tokens(self.step)
        self.running.remove(response)
        self.context -= len(response.prompt) + tokens
        self._cache.free(response.key, len(response.prompt), tokens)

    def _preempt(self, response: EmulatedResponse) -> None:
        before = self._progress_of(response, self.step)
        self._leave(response)
        response.before, response.preempted = before, True
        self.waiting.appendleft(response)

    def _progress_of(self, response: EmulatedResponse, end: int) -> Progress:
        """A running response up to step `end`."""
        starts, versions = zip(*self._versions, strict=True)
        steps = np.arange(response.first, end)
        before, length = response.tokens_before, response.tokens(end)
        progress = Progress(
            id=response.request.id,
            tokens=np.resize(response.prompt, length),
            logprobs=np.full(length, -1.0, np.float32),
            versions=np.empty(length, np.int32),
        )
        progress.versions[before:] = np.array(versions, np.int32)[
            np.searchsorted(starts, steps, side="right") - 1
        ]
        if response.before is not None:
            progress.tokens[:before] = response.before.tokens
            progress.logprobs[:before] = response.before.logprobs
            progress.versions[:before] = response.before.versions
        return progress
