"""`Engine`: generates responses token by token, and takes new weights between two tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_core.messages import EngineProfile
from rljob_core.trajectory import Array, FinishReason


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a response has come, the newest token included: int32, float32, int32 arrays [n]."""

    id: str
    tokens: Array
    logprobs: Array
    versions: Array


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked to generate.

    Attributes:
        id: of the request, other than that of any before.
        tokens: int32 [p], the prompt.
        temperature: 0 for greedy.
        max_tokens: of the response, inherited tokens included.
        stop_tokens: ids that end it (the end token is part of the response).
        stop: strings that end it.
        seed: of its own random stream, so that a sample does not depend on what runs beside it. The i-th token of a
            response always draws the same number, whoever draws it.
        inherited: what another engine has generated of it, fewer tokens than `max_tokens`: it goes on from there.
    """

    id: str
    tokens: Array
    temperature: float
    top_p: float
    max_tokens: int
    stop_tokens: frozenset[int]
    stop: tuple[str, ...]
    seed: int
    inherited: Progress | None = None

    @property
    def inherited_tokens(self) -> int:
        """How many tokens it goes on from."""
        return 0 if self.inherited is None else len(self.inherited.tokens)


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished response, with what it inherited: int32, float32, int32 arrays [n]."""

    id: str
    tokens: Array
    logprobs: Array
    versions: Array
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Stopped:
    """A response that ended early.

    Attributes:
        reason: a word, and perhaps `: ` and more; `Restarted`: because of new weights under `inflight: Restart`.
        failure: whether it counts as a failed attempt.
    """

    id: str
    reason: str
    failure: bool


EngineEvent = Completed | Stopped


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is, and how fast, once it has been measured."""

    running: int
    waiting: int
    tokens: int
    profile: EngineProfile | None = None


class Engine(Protocol):
    """Generates. One event loop calls it; the engine computes elsewhere and never blocks that loop."""

    slots: int
    """Trajectories generated at once; more are queued."""
    version: int
    """Policy version of the weights in use; -1 before any."""

    async def start(self) -> None:
        """Load the architecture and, unless a version follows, the initial weights."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one."""

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that are generating and have so many tokens at least, inherited
        ones included. Of a closed engine: how far they had come.
        """

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on (`None`: the initial model's).

        `Update`: running ones go on, with the KV cache recomputed if the engine's option says so. `Keep`:
        returns once the running ones have ended; those submitted meanwhile wait. `Restart`: running ones are
        stopped with reason `Restarted`.
        """

    def load(self) -> EngineLoad:
        """How busy it is."""

    async def close(self) -> None:
        """Stop computing and free the memory."""
