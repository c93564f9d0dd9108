"""A sampler for vLLM with our random numbers: the i-th token of a response draws the same number in every engine.

Requests that carry no seed of ours, or ask for more than temperature and top_p, are left to vLLM's own sampler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_runtime.engines.random_stream import draw, stream
from rljob_runtime.engines.torch.sampler import sample
from rljob_runtime.engines.vllm import internals
from rljob_runtime.engines.vllm.names import DRAWN, SEED


@dataclass(frozen=True, slots=True)
class StepRequests:
    """The requests of a step, by row.

    Attributes:
        ids: vLLM's, in order.
        streams: uint64 [n], the state of each request's stream before its response's first token.
        temperature: float32 [n].
        top_p: float32 [n].
    """

    ids: tuple[str, ...]
    streams: NDArray[np.uint64]
    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]


class Sampler(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of a model runner's sampler.

    Args:
        runner: vLLM's model runner on a CPU.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__()
        # Not as submodules: the runner holds this one.
        self.__dict__["_runner"] = runner
        self.__dict__["_own"] = runner.sampler
        self._batch: StepRequests | None = None

    def __getattr__(self, name: str) -> Any:
        """Whatever else the runner asks of a sampler."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_own"], name)

    def forward(self, logits: Any, sampling_metadata: Any, *args: Any, **options: Any) -> Any:
        """Sample a token per row; `logits` float [n, vocabulary]."""
        ids = internals.batch_ids(self._runner)
        batch = self._current(ids) if len(ids) == len(logits) else None
        if batch is None or args or options:
            return self._own(logits, sampling_metadata, *args, **options)
        drawn = internals.generated_tokens(self._runner, len(batch.ids))
        states = batch.streams + drawn.astype(np.uint64) * _STEP
        tokens, logprobs = sample(
            logits, uniform=draw(states), temperature=batch.temperature, top_p=batch.top_p
        )
        return internals.sampler_output(tokens, logprobs)

    def _current(self, ids: tuple[str, ...]) -> StepRequests | None:
        """The step's requests; None if vLLM's sampler has to serve one of them."""
        if self._batch is not None and self._batch.ids == ids:
            return self._batch
        self._batch = None
        params = [internals.sampling_params(self._runner, name) for name in ids]
        if not all(map(_ours, params)):
            return None
        self._batch = StepRequests(
            ids=ids,
            streams=np.array([_stream(p.extra_args) for p in params], np.uint64),
            temperature=np.array([p.temperature for p in params], np.float32),
            top_p=np.array([p.top_p for p in params], np.float32),
        )
        return self._batch


def install(runner: Any) -> bool:
    """Replace the sampler of a model runner by ours; False if this is no runner that can take it."""
    if not internals.samples_on_host(runner):
        return False
    if not isinstance(runner.sampler, Sampler):
        runner.sampler = Sampler(runner)
    return True


#: What a stream's state grows by with each number drawn.
_STEP = np.array([stream(0, 1)]) - np.array([stream(0)])


def _stream(extra: dict[str, Any]) -> np.uint64:
    return stream(int(extra[SEED]), int(extra[DRAWN]))


def _ours(params: Any) -> bool:
    return bool(
        params.extra_args
        and SEED in params.extra_args
        and params.logprobs == 0
        and params.top_k in (0, -1)
        and not params.min_p
        and not params.min_tokens
        and not params.logit_bias
        and not params.bad_words
        and not params.allowed_token_ids
        and not params.presence_penalty
        and not params.frequency_penalty
        and params.repetition_penalty == 1.0
        and params.structured_outputs is None
    )
