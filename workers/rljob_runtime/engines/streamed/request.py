"""A request that an engine answers with a stream of tokens, and the chunks of such a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rljob_core.ports import Request


class EngineEnded(Exception):
    """The engine behind the requests is gone, and all of them with it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of a stream: one or more, or none at its end.

    Attributes:
        tokens: their ids.
        logprobs: theirs, under the tempered distribution before truncation by `top_p`.
        versions: of the weights that made them; None: of those in use when the stream began, which cuts it.
        finish: why there will be no more: `cut` if it should begin again, "" if there may be more.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int] | None = None
    finish: Literal["", "stop", "length", "cut"] = ""


@dataclass(slots=True, eq=False)
class StreamedRequest:
    """A request that the engine has, and its response so far, inherited tokens included.

    Attributes:
        number: no other request of this engine has it.
        ending: row of the stop table.
        tokens, logprobs, versions: the response so far.
        task: streams the response.
    """

    number: int
    request: Request
    ending: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        inherited = self.request.inherited
        if inherited is not None:
            self.tokens = np.asarray(inherited.tokens).tolist()
            self.logprobs = np.asarray(inherited.logprobs).tolist()
            self.versions = np.asarray(inherited.versions).tolist()

    @property
    def prompt(self) -> list[int]:
        """Prompt and response so far, which the next stream continues."""
        return [*np.asarray(self.request.tokens).tolist(), *self.tokens]

    @property
    def left(self) -> int:
        """Tokens that it may still have."""
        return self.request.max_tokens - len(self.tokens)

    @property
    def length(self) -> int:
        """Of its context, in tokens."""
        return len(self.request.tokens) + len(self.tokens)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The response: int32, float32, int32 arrays [n]."""
        return (
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
        )
