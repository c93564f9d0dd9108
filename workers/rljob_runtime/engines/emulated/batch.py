"""The responses of the engine `Emulated`: the model of an engine, with tokens, log-probabilities and versions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_core.emulation import EngineBatch, EngineSequence, ResponseLengths
from rljob_core.ports import Completed, Progress, Request
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions


@dataclass(slots=True, eq=False, kw_only=True)
class EmulatedResponse(EngineSequence):
    """One response, whose tokens are those of `had` and one of each step since `first`.

    Attributes:
        request: that asks for it.
        text: int32 [p], the prompt.
        had: what it had when it joined, which is inherited or was generated before it was preempted.
        finish: why it will end.
    """

    request: Request
    text: NDArray[np.int32]
    had: Progress | None = None
    finish: FinishReason = FinishReason.STOP

    @classmethod
    def of(cls, request: Request) -> EmulatedResponse:
        """The response to a request, which waits."""
        text, had = np.asarray(request.tokens, np.int32), request.inherited
        return cls(
            request.id,
            text.tobytes(),
            len(text),
            before=0 if had is None else len(had.tokens),
            request=request,
            text=text,
            had=had,
        )

    def set_length(self, lengths: ResponseLengths, version: int) -> None:
        """Draw its length when it first joins, under weights of this version."""
        request = self.request
        if self.had is not None and self.before:
            version = int(self.had.versions[0])
        # One more token at least: engines with other lengths may have generated what it inherits.
        length = max(lengths.length(self.text.tobytes(), request.seed, version), self.before + 1)
        self.finish = FinishReason.STOP if length <= request.max_tokens else FinishReason.LENGTH
        self.length = min(length, request.max_tokens)


class EmulatedBatch(EngineBatch[EmulatedResponse]):
    """All responses of one engine, between two steps."""

    def __init__(self, options: EmulatedEngineOptions) -> None:
        lengths = options.lengths.distribution
        super().__init__(
            slots=options.slots,
            profile=options.profile,
            begin=lambda response, version: response.set_length(lengths, version),
            prefill_seconds=options.time_scale * options.prefill_seconds_per_token,
            kv_tokens=options.kv_tokens,
            prefix_caching=options.prefix_caching,
            preempted=self._keep,
        )

    def progress(self, least: Mapping[str, int], *, begun: int) -> list[Progress]:
        """Responses that run or are preempted, and have so many tokens at least, after `begun` steps more."""
        end = self.step + begun
        running = [
            self._progress_of(r, end)
            for r in self.running
            if not r.cancelled and r.tokens(end) >= least.get(r.id, math.inf)
        ]
        preempted = [
            r.had
            for r in self.waiting
            if r.preempted and r.had is not None and r.before >= least.get(r.id, math.inf)
        ]
        return [*running, *preempted]

    def completed(self, response: EmulatedResponse) -> Completed:
        """A response that has ended with the last step."""
        progress = self._progress_of(response, response.end)
        return Completed(progress.id, progress.tokens, progress.logprobs, progress.versions, response.finish)

    def _keep(self, response: EmulatedResponse) -> None:
        response.had = self._progress_of(response, self.step)

    def _progress_of(self, response: EmulatedResponse, end: int) -> Progress:
        """A running response up to step `end`."""
        starts, versions = zip(*self.versions, strict=True)
        steps = np.arange(response.first, end)
        before, length = response.before, response.tokens(end)
        progress = Progress(
            id=response.id,
            tokens=np.resize(response.text, length),
            logprobs=np.full(length, -1.0, np.float32),
            versions=np.empty(length, np.int32),
        )
        progress.versions[before:] = np.array(versions, np.int32)[
            np.searchsorted(starts, steps, side="right") - 1
        ]
        if response.had is not None:
            progress.tokens[:before] = response.had.tokens
            progress.logprobs[:before] = response.had.logprobs
            progress.versions[:before] = response.had.versions
        return progress
