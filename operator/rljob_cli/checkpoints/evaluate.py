"""Has an engine answer prompts under a checkpoint's weights, and reward functions score the answers.

The engine, the sampling and the scoring are those of a job: the same code, and functions run in a process of their own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import Completed, Engine, EngineEvent, Request
from rljob_core.trajectory import FinishReason
from rljob_runtime.data.prompts import PromptSource, prompt_encoder
from rljob_runtime.engines import create_engine
from rljob_runtime.engines.events import PROMPT_TOO_LONG
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.messages import ScoringJob
from rljob_runtime.rewards.scorer import Scorer

Way = Literal["sampled", "greedy"]


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """One answer.

    Attributes:
        prompt: its index.
        way: sampled as `spec.rollout.sampling` says, or greedily.
        text: of the prompt.
        completion: the answer.
        tokens: of the answer.
        truncated: it ended because it had `maxTokens` tokens.
        reward, parts: the sum of the functions' scores, and each; nothing if `error`.
        error: why it has no score; empty if it has one.
    """

    prompt: int
    way: Way
    text: str
    completion: str
    tokens: int
    truncated: bool
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    """What the answers of one way scored.

    Attributes:
        answers: that have a score.
        failed: that have none.
        reward: their mean; None without any.
        half: half the width of its interval of confidence of 95 %.
        parts: each function's mean.
        tokens: mean length of an answer.
        truncated: share of answers that ended because they had `maxTokens` tokens.
    """

    answers: int
    failed: int
    reward: float | None
    half: float | None
    parts: dict[str, float]
    tokens: float
    truncated: float


def score_of(answers: Sequence[EvaluatedAnswer]) -> EvaluationScore:
    """The means over answers; at least one."""
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    names = dict.fromkeys(name for answer in answers for name in answer.parts)
    return EvaluationScore(
        answers=len(rewards),
        failed=len(answers) - len(rewards),
        reward=fmean(rewards) if rewards else None,
        half=1.96 * stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else None,
        parts={
            name: fmean([answer.parts[name] for answer in answers if name in answer.parts]) for name in names
        },
        tokens=fmean([answer.tokens for answer in answers]),
        truncated=fmean([answer.truncated for answer in answers]),
    )


async def evaluate(
    config: JobConfig,
    *,
    model: Path,
    tensors: Callable[[], Iterable[tuple[str, Any]]] | None,
    samples: int,
    ways: Sequence[Way],
    done: Callable[[int, int], None],
) -> list[EvaluatedAnswer]:
    """The scored answers, by prompt and way.

    Args:
        config: a job whose `data` are the prompts, with its engine, sampling and rewards.
        model: folder of the model, or of the base model whose weights are replaced.
        tensors: makes the weights to evaluate; None for those in the folder.
        samples: prompts; of a file, at most its rows.
        ways: in which each is answered.
        done: called with the number of finished answers and of all.

    Raises:
        SpecError: the data, the engine's options or a reward function do not fit.
        RLJobError: the engine or the scoring fails.
    """
    if config.spec.rollout.environment is not None:
        raise SpecError(
            "spec.rollout.environment",
            "no episodes are played here yet: spec.evaluation scores checkpoints in episodes while the job trains",
        )
    prompts = PromptSource(config.spec.data, model_uri=str(model), reads=config.spec.reward.fields)
    prompts.check_rows()
    count = min(samples, getattr(prompts.items, "rows", samples))
    tokenizer = Tokenizer(model)
    encode = prompt_encoder(config.spec.data, tokenizer)
    texts = [prompts.text(index) for index in range(count)]
    requests = {
        f"{index}/{way}": _request(config, encode(texts[index]), tokenizer, index, way)
        for index in range(count)
        for way in ways
    }
    scorer = Scorer(config)
    try:
        await scorer.start()  # a function that does not load is reported before the model is loaded
        async with _engine(config, model, tensors, tokenizer) as engine:
            events = await _answers(engine, requests, done)
        skip = config.spec.reward.skip_special_tokens
        unscored = [
            _unscored(events[name], int(index), way, texts[int(index)], tokenizer, skip=skip)
            for name in requests
            for index, _, way in [name.partition("/")]
        ]
        return list(await asyncio.gather(*(_scored(scorer, answer) for answer in unscored)))
    finally:
        await scorer.close()


@asynccontextmanager
async def _engine(
    config: JobConfig,
    model: Path,
    tensors: Callable[[], Iterable[tuple[str, Any]]] | None,
    tokenizer: Tokenizer,
) -> AsyncIterator[Engine]:
    name, pool = config.spec.rollout.engine.name, config.spec.rollout.pools[0].name
    engine = create_engine(
        name,
        model_path=model,
        options=config.engine_options(pool),
        decode=lambda ids: tokenizer.decode(list(ids)),
    )
    try:
        await engine.start()
        await engine.swap(engine.version + 1, None if tensors is None else tensors(), "Update")
        yield engine
    finally:
        await engine.close()


def _request(config: JobConfig, tokens: Sequence[int], tokenizer: Tokenizer, index: int, way: str) -> Request:
    sampling = config.spec.rollout.sampling
    greedy = way == "greedy"
    return Request(
        id=f"{index}/{way}",
        tokens=np.asarray(tokens, dtype=np.int32),
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop_tokens=tokenizer.stop_tokens,
        stop=tuple(sampling.stop),
        seed=index,
    )


async def _answers(
    engine: Engine, requests: Mapping[str, Request], done: Callable[[int, int], None]
) -> dict[str, EngineEvent]:
    engine.submit(list(requests.values()))
    found: dict[str, EngineEvent] = {}
    while len(found) < len(requests):
        found |= {event.id: event for event in await engine.events()}
        done(len(found), len(requests))
    return found


def _unscored(
    event: EngineEvent, index: int, way: str, text: str, tokenizer: Tokenizer, *, skip: bool
) -> EvaluatedAnswer:
    chosen: Way = "greedy" if way == "greedy" else "sampled"
    if not isinstance(event, Completed):
        hint = "; to leave room for it: --set rollout.sampling.maxTokens=N"
        error = f"{event}{hint if event.reason == PROMPT_TOO_LONG else ''}"
        return EvaluatedAnswer(index, chosen, text, "", 0, truncated=False, error=error)
    completion = tokenizer.completion(event.tokens, skip_special_tokens=skip)
    cut = event.finish == FinishReason.LENGTH
    return EvaluatedAnswer(index, chosen, text, completion, len(event.tokens), truncated=cut)


async def _scored(scorer: Scorer, answer: EvaluatedAnswer) -> EvaluatedAnswer:
    if answer.error:
        return answer
    finish = FinishReason.LENGTH if answer.truncated else FinishReason.STOP
    outcome = await scorer.score(ScoringJob(answer.prompt, False, answer.completion, finish=finish))
    given = {
        name: getattr(answer, name) for name in ("prompt", "way", "text", "completion", "tokens", "truncated")
    }
    if outcome.failure is not None:
        return EvaluatedAnswer(**given, error=str(outcome.failure))
    return EvaluatedAnswer(**given, reward=outcome.reward, parts=outcome.parts)


def check_answers(answers: Sequence[EvaluatedAnswer]) -> None:
    """Refuse an evaluation that scored nothing.

    Raises:
        SpecError: no answer has a score; the message has the first reason.
    """
    if answers and all(answer.error for answer in answers):
        raise SpecError("CHECKPOINT", f"no answer has a score; the first reason: {answers[0].error}")
