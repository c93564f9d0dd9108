"""The sequences of an engine: which of them run in the next decode step, wait or are preempted.

It counts in steps and tokens and knows no clock. Running sequences advance together, one token per step. A sequence
that is preempted keeps its tokens; only its KV cache is lost.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rljob_core.messages import EngineProfile


class KVCache:
    """Counts the tokens that running responses hold; it keeps nothing of a response that does not run.

    The methods take a response's prompt as a key, and the lengths of the prompt and of the response so far in tokens.

    Args:
        capacity: tokens that fit; None for any number.
        prefix_caching: whether a prompt that several responses share is held once.
    """

    def __init__(self, capacity: int | None, *, prefix_caching: bool) -> None:
        self.capacity = capacity
        self.used = 0
        self._prefix_caching = prefix_caching
        self._holders: Counter[Hashable] = Counter()  # responses of each prompt

    @property
    def is_overfull(self) -> bool:
        """Whether it holds more than fits."""
        return self.capacity is not None and self.used > self.capacity

    def missing(self, key: Hashable, prompt: int, response: int) -> int:
        """Tokens of a response that are not held for another one of the same prompt."""
        return response if self._prefix_caching and self._holders[key] else prompt + response

    def fits(self, key: Hashable, prompt: int, response: int) -> bool:
        """Whether a response fits into what is free."""
        return self.capacity is None or self.used + self.missing(key, prompt, response) <= self.capacity

    def add(self, key: Hashable, prompt: int, response: int) -> int:
        """Hold a response, whether it fits or not; returns how many tokens were not held before."""
        added = self.missing(key, prompt, response)
        self.used += added
        self._holders[key] += 1
        return added

    def grow(self, tokens: int) -> None:
        """Hold so many more tokens of the responses that it holds."""
        self.used += tokens

    def free(self, key: Hashable, prompt: int, response: int) -> None:
        """Hold a response no longer."""
        self._holders[key] -= 1
        self.used -= self.missing(key, prompt, response)
        if not self._holders[key]:
            del self._holders[key]

    def steps(self, running: int) -> int | None:
        """How many steps of so many responses can follow each other until it is overfull; None for any number.

        A step holds the contexts as they are before it, and adds a token to each. The next step must fit.
        """
        return None if self.capacity is None else (self.capacity - self.used) // running + 1


@dataclass(frozen=True, slots=True)
class StepDurations:
    """Durations of steps that follow each other: prefill + first, first + growth, first + 2 · growth, …

    Attributes:
        first: seconds of the first step without its prefill, above 0.
        growth: seconds by which each step takes longer than the one before, as contexts grow.
        prefill: seconds that the first step takes longer, because responses have joined.
    """

    first: float
    growth: float
    prefill: float = 0.0

    def seconds(self, steps: int) -> float:
        """Duration of so many steps."""
        if not steps:
            return 0.0
        return self.prefill + steps * self.first + self.growth * steps * (steps - 1) / 2

    def steps(self, seconds: float) -> float:
        """How many steps fit into so many seconds, with a fraction of the last: the inverse of `seconds`."""
        if seconds < self.prefill + self.first:
            return max(seconds, 0.0) / (self.prefill + self.first)
        seconds -= self.prefill
        if not self.growth:
            return seconds / self.first
        half = self.first - self.growth / 2
        return (math.sqrt(half**2 + 2 * self.growth * seconds) - half) / self.growth


@dataclass(slots=True, eq=False)
class EngineSequence:
    """A prompt and its response so far.

    Attributes:
        id: of the request.
        key: what sequences of the same prompt have in common.
        prompt: its tokens.
        before: tokens of the response when it joined, inherited or generated before it was preempted.
        first: step in which it joined.
        length: tokens that the response will have, inherited ones included; 0 until it first joins.
        preempted: whether it has run, and waits to run again.
        cancelled: whether nobody wants it any more.
    """

    id: str
    key: Hashable
    prompt: int
    before: int = 0
    first: int = 0
    length: int = 0
    preempted: bool = False
    cancelled: bool = False

    @property
    def end(self) -> int:
        """Step after its last token's."""
        return self.first + self.length - self.before

    def tokens(self, step: int) -> int:
        """How many its response has before a step while it runs."""
        return self.before + step - self.first


S = TypeVar("S", bound=EngineSequence)


class EngineBatch(Generic[S]):
    """All sequences of one engine, between two steps.

    Args:
        slots: sequences that run at once.
        profile: seconds of a step.
        prefill_seconds: what each token of a context that is computed adds to a step.
        kv_tokens: capacity of the KV cache; None for any number.
        prefix_caching: whether a prompt that several sequences share is held once.
        begin: called with a sequence and the version when it first joins; sets its length.
        preempted: called with a sequence that is to be preempted, before it leaves.

    Attributes:
        running: in the order in which they joined.
        waiting: the next one first. Preempted ones come before all others.
        context: tokens in the contexts of the running ones, prompts included.
        generated: tokens since the start.
        step: number of steps since the start.
        versions: (first step, version), as far as running sequences need them.
    """

    def __init__(
        self,
        *,
        slots: int,
        profile: EngineProfile,
        begin: Callable[[S, int], None],
        prefill_seconds: float = 0.0,
        kv_tokens: int | None = None,
        prefix_caching: bool = True,
        preempted: Callable[[S], None] = lambda _: None,
    ) -> None:
        self.profile = profile
        self.running: list[S] = []
        self.waiting: deque[S] = deque()
        self.context = self.generated = self.step = 0
        self.versions: list[tuple[int, int]] = [(0, -1)]
        self._slots = slots
        self._prefill_seconds = prefill_seconds
        self._cache = KVCache(kv_tokens, prefix_caching=prefix_caching)
        self._prefill = 0  # tokens of contexts that the next step computes
        self._begin, self._preempted = begin, preempted

    @property
    def has_begun(self) -> bool:
        """Whether any sequence has begun and has not ended: it runs, or is preempted."""
        return bool(self.running) or (bool(self.waiting) and self.waiting[0].preempted)

    def add(self, sequence: S) -> None:
        """Let a sequence wait."""
        self.waiting.append(sequence)

    def cancel(self, ids: Collection[str]) -> bool:
        """Forget what waits of these, and let what runs leave before the next step; whether any of it runs."""
        self.waiting = deque(s for s in self.waiting if s.id not in ids)
        running = [s for s in self.running if s.id in ids]
        for sequence in running:
            sequence.cancelled = True
        return bool(running)

    def clean(self) -> None:
        """Remove the cancelled sequences, and preempt those that joined last until the next step fits."""
        for sequence in [s for s in self.running if s.cancelled]:
            self._leave(sequence)
        while self._cache.is_overfull and len(self.running) > 1:
            self._preempt(self.running[-1])

    @property
    def cached(self) -> int:
        """Tokens that the KV cache holds."""
        return self._cache.used

    def use(self, version: int, *, recompute: bool = True) -> None:
        """Generate with weights of this version from the next step on, which computes all contexts again if asked."""
        oldest = min((s.first for s in self.running), default=self.step)
        self.versions.append((self.step, version))
        while len(self.versions) > 1 and self.versions[1][0] <= oldest:
            del self.versions[0]
        if recompute:
            self._prefill = self._cache.used

    def stop(self) -> list[S]:
        """Remove all sequences that have begun, and return them."""
        begun = [*self.running, *(s for s in self.waiting if s.preempted)]
        for sequence in list(self.running):
            self._leave(sequence)
        self.waiting = deque(s for s in self.waiting if not s.preempted)
        return begun

    def admit(self, *, preempted_only: bool) -> None:
        """Let waiting sequences join, in order, while there are slots and room in the cache."""
        while self.waiting and len(self.running) < self._slots:
            sequence = self.waiting[0]
            if preempted_only and not sequence.preempted:
                return
            fits = self._cache.fits(sequence.key, sequence.prompt, sequence.before)
            if self.running and not fits:  # alone, it runs whether it fits or not
                return
            self._join(self.waiting.popleft())

    def advance(self, steps: int) -> list[S]:
        """Have done so many steps; returns the sequences that end with the last of them, which have left."""
        tokens = steps * len(self.running)
        self.step += steps
        self.context += tokens
        self.generated += tokens
        self._cache.grow(tokens)
        if steps:
            self._prefill = 0
        ended = [s for s in self.running if s.end == self.step]
        for sequence in ended:
            self._leave(sequence)
        return ended

    def remaining(self) -> int:
        """Steps until the next running sequence ends, or until the cache is overfull."""
        steps = min(s.end for s in self.running) - self.step
        fitting = self._cache.steps(len(self.running)) if len(self.running) > 1 else None
        return steps if fitting is None else min(steps, fitting)

    def durations(self) -> StepDurations:
        """Of the next steps of the running sequences."""
        running = len(self.running)
        return StepDurations(
            first=self.profile.step(batch=running, context=self.context),
            growth=self.profile.seconds_per_context_token * running,
            prefill=self._prefill_seconds * self._prefill,
        )

    def _join(self, sequence: S) -> None:
        if not sequence.length:
            self._begin(sequence, self.versions[-1][1])
        sequence.first, sequence.preempted = self.step, False
        self._prefill += self._cache.add(sequence.key, sequence.prompt, sequence.before)
        self.context += sequence.prompt + sequence.before
        self.running.append(sequence)

    def _leave(self, sequence: S) -> None:
        tokens = sequence.tokens(self.step)
        self.running.remove(sequence)
        self.context -= sequence.prompt + tokens
        self._cache.free(sequence.key, sequence.prompt, tokens)

    def _preempt(self, sequence: S) -> None:
        self._preempted(sequence)
        self._leave(sequence)
        sequence.before, sequence.preempted = sequence.tokens(self.step), True
        self.waiting.appendleft(sequence)
