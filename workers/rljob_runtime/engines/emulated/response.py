"""A response of the engine `Emulated`: its request, and what it had when it joined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_core.emulation import EngineSequence, ResponseLengths
from rljob_core.ports import Progress, Request
from rljob_core.trajectory import FinishReason


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
