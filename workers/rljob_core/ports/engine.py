"""`Engine`: generates responses token by token, and swaps weights between two tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rljob_core.messages import EngineProfile
from rljob_core.trajectory import Array, FinishReason


@dataclass(frozen=True, slots=True)
class Progress:
    """A response so far, up to its newest token.

    Attributes:
        tokens: int32 [n].
        logprobs: float32 [n].
        versions: int32 [n], policy version that produced each token.
    """

    id: str
    tokens: Array
    logprobs: Array
    versions: Array


@dataclass(frozen=True, slots=True)
class Request:
    """One response to generate.

    Attributes:
        id: unique among all requests of the engine.
        tokens: int32 [p], the prompt.
        temperature: 0 for the likeliest token each time.
        max_tokens: longest response, inherited tokens included.
        stop_tokens: token ids that end the response, of which they are part.
        stop: strings that end the response.
        seed: seed of the request's own random stream, so that a response does not depend on what runs beside it. The
            i-th token of a response draws the same number on every engine.
        inherited: the part that another engine has generated, shorter than `max_tokens`, from which to resume.
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
        """Number of tokens that it resumes from; 0 if it starts from the prompt."""
        return 0 if self.inherited is None else len(self.inherited.tokens)


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished response, inherited tokens included; arrays as in `Progress`."""

    id: str
    tokens: Array
    logprobs: Array
    versions: Array
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Stopped:
    """A response that ended early.

    Attributes:
        reason: a CamelCase word. `Restarted` means new weights under `inflight: Restart`.
        failure: whether it counts as a failed attempt.
        detail: for people.
    """

    id: str
    reason: str
    failure: bool
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


EngineEvent = Completed | Stopped


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is, and how fast, once it has been measured.

    Attributes:
        running: responses that it generates.
        waiting: responses that it holds and does not generate yet.
        tokens: generated since it started.
        profile: of its decode steps; None before they have been measured.
        context: tokens, prompts and responses, of the running responses; 0 if the engine does not say.
        kv_tokens: how many tokens its KV cache holds; None if the engine does not say, or any number.
    """

    running: int
    waiting: int
    tokens: int
    profile: EngineProfile | None = None
    context: int = 0
    kv_tokens: int | None = None


class Engine(Protocol):
    """Generates responses. One event loop calls it; the engine computes elsewhere and never blocks that loop."""

    slots: int
    """Number of responses generated at once; further requests are queued."""
    version: int
    """Policy version of the weights in use; -1 before any are loaded."""

    async def start(self) -> None:
        """Load the architecture, and the initial weights unless a version follows."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these responses, starting them in order.

        Raises:
            GenerationFailed: the engine has ended.
            Exception: the engine cannot generate one of them. The caller cancels them all and submits them one by one:
                those that raise again count as failed attempts, and the engine continues.
        """

    def cancel(self, ids: Sequence[str]) -> None:
        """Drop these requests; no event follows for them."""

    async def events(self) -> Sequence[EngineEvent]:
        """Wait for events; at least one."""

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """The responses so far of requests that are being generated.

        A closed engine returns what it had when it was closed.

        Args:
            least: by request id, the number of tokens (inherited ones included) below which it is left out.
        """

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on.

        Args:
            version: policy version of the weights.
            tensors: (name, tensor) pairs; None for the initial model's weights.
            inflight: what happens to running responses. `Update`: they continue under the new weights, with the KV
                cache recomputed if the engine's options say so. `Keep`: the swap waits until they have ended, and
                requests submitted meanwhile wait for it. `Restart`: they are stopped with reason `Restarted`.
        """

    def load(self) -> EngineLoad:
        """The engine's load now."""

    async def close(self) -> None:
        """Stop computing and free the memory."""


@runtime_checkable
class CacheKeeper(Protocol):
    """An engine that can keep the caches of running responses through a swap, or compute them again."""

    recompute_cache: bool | None
    """What swaps that follow do under `inflight: Update`; None where whoever swaps decides, and sets it before each."""
