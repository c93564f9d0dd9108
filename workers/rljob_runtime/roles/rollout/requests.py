"""Makes an engine's requests of assignments, and submits them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.config import JobConfig
from rljob_core.errors import GenerationFailed
from rljob_core.ports import Engine, Progress, Request
from rljob_core.stable_hash import stable_hash
from rljob_runtime.data.prompts import prompt_encoder
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.roles.rollout.running import Assignment, Running, request_of

_PROMPTS = 16
"""Prompts whose tokens are kept: siblings come one behind the other."""


class EngineRequests:
    """Makes requests as a job samples.

    Args:
        config: the job's.
        tokenizer: encodes the prompts.
    """

    def __init__(self, config: JobConfig, tokenizer: Tokenizer) -> None:
        self._sampling = config.spec.rollout.sampling
        self._tokenizer = tokenizer
        encode = prompt_encoder(config.spec.data, tokenizer)

        @lru_cache(_PROMPTS)
        def encoded(text: str) -> NDArray[np.int32]:
            return np.asarray(encode(text), dtype=np.int32)

        self._encoded = encoded

    def prompt(self, work: Assignment) -> NDArray[np.int32]:
        """The tokens of an assignment's prompt: int32 [p], one array for siblings that arrive together."""
        return self._encoded(work.text)

    def first(self, work: Assignment, inherited: Progress | None) -> Request:
        """The request of an assignment, which begins at its prompt or behind what it inherits."""
        return self._request(
            request_of(work),
            work,
            self.prompt(work),
            max_tokens=self._sampling.max_tokens,
            seed=work.seed,
            inherited=inherited,
        )

    def later(self, name: str, running: Running) -> Request:
        """The request of a later turn of an episode, in which every turn has random draws of its own."""
        return self._request(
            name,
            running.work,
            running.prompt,
            max_tokens=self._sampling.max_tokens - running.earlier,
            seed=stable_hash(f"{running.work.seed}/{name}") & 0x7FFFFFFF,
            inherited=None,
        )

    def _request(
        self,
        name: str,
        work: Assignment,
        tokens: Any,
        *,
        max_tokens: int,
        seed: int,
        inherited: Progress | None,
    ) -> Request:
        greedy = work.sample == "greedy"
        return Request(
            id=name,
            tokens=tokens,
            temperature=0.0 if greedy else self._sampling.temperature,
            top_p=1.0 if greedy else self._sampling.top_p,
            max_tokens=max_tokens,
            stop_tokens=self._tokenizer.stop_tokens,
            stop=tuple(self._sampling.stop),
            seed=seed,
            inherited=inherited,
        )


def submit(engine: Engine, requests: Sequence[Request]) -> dict[str, Exception]:
    """Submit requests together, and one by one if that raises; why the engine refuses which of them.

    Raises:
        GenerationFailed: the engine has ended.
    """
    try:
        engine.submit(requests)
    except GenerationFailed:
        raise
    except Exception as error:
        engine.cancel([request.id for request in requests])  # it may have accepted some of them
        if len(requests) == 1:
            return {requests[0].id: error}
        return {name: why for request in requests for name, why in submit(engine, [request]).items()}
    return {}
