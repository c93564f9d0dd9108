"""A response of the engine `Emulated`: how many tokens it has before a step, and how many it will have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_core.ports import Progress, Request
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.emulated.lengths import response_length
from rljob_runtime.engines.emulated.options import LengthOptions


@dataclass(slots=True, eq=False)
class EmulatedResponse:
    """One response, whose tokens are `before` and one of each step since `first`.

    Attributes:
        request: that asks for it.
        prompt: int32 [p].
        key: the prompt as bytes.
        before: what it had when it joined, which is inherited or was generated before it was preempted.
        first: step in which it joined.
        length: tokens that it will have, inherited ones included; 0 until it first joins.
        finish: why it will end.
        preempted: whether it has run, and waits to run again.
        cancelled: whether nobody wants it any more.
    """

    request: Request
    prompt: NDArray[np.int32]
    key: bytes
    before: Progress | None
    first: int = 0
    length: int = 0
    finish: FinishReason = FinishReason.STOP
    preempted: bool = False
    cancelled: bool = False

    @property
    def tokens_before(self) -> int:
        """How many it had when it joined."""
        return 0 if self.before is None else len(self.before.tokens)

    @property
    def end(self) -> int:
        """Step after its last token's."""
        return self.first + self.length - self.tokens_before

    def tokens(self, step: int) -> int:
        """How many it has before a step while it runs."""
        return self.tokens_before + step - self.first

    def set_length(self, lengths: LengthOptions, version: int) -> None:
        """Draw its length when it first joins, under weights of this version."""
        inherited, request = self.tokens_before, self.request
        if self.before is not None and inherited:
            version = int(self.before.versions[0])
        # One more token at least: engines with other lengths may have generated what it inherits.
        length = max(response_length(lengths, self.prompt, request.seed, version), inherited + 1)
        self.finish = FinishReason.STOP if length <= request.max_tokens else FinishReason.LENGTH
        self.length = min(length, request.max_tokens)
