"""Has an engine answer prompts under a checkpoint's weights, and reward functions score the answers.

The engine, the sampling and the scoring are those of a job: the same code, and functions run in a process of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from rljob_cli.checkpoints.evaluated_job import EvaluatedSet
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.held_out import score_answers
from rljob_core.ports import Completed, Engine, EngineEvent, Request
from rljob_core.spec import USUAL_SAMPLES
from rljob_core.stable_hash import stable_hash
from rljob_core.trajectory import FinishReason
from rljob_runtime.data.prompts import PromptSource, prompt_encoder
from rljob_runtime.engines import create_engine
from rljob_runtime.engines.events import PROMPT_TOO_LONG
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.messages import ScoringJob
from rljob_runtime.rewards.scorer import Scorer

Way = Literal["sampled", "greedy"]
WAYS: tuple[Way, ...] = ("sampled", "greedy")


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
        failed: that have none, and count as 0.
        reward: their mean; None if more than a tenth of all answers to the set have no score.
        ci95: half the width of its 95 % interval.
        parts: each function's mean.
        tokens: mean length of an answer.
        truncated: share of answers that ended because they had `maxTokens` tokens.
        pass_at: pass@k by k, if there are several sampled answers to each prompt.
    """

    answers: int
    failed: int
    reward: float | None
    ci95: float | None
    parts: dict[str, float]
    tokens: float
    truncated: float
    pass_at: dict[int, float]


def scores_of(answers: Sequence[EvaluatedAnswer], *, pass_reward: float) -> dict[Way, EvaluationScore]:
    """The scores of the answers to one set; at least one of each way."""
    ways: dict[Way, list[EvaluatedAnswer]] = {
        way: [answer for answer in answers if answer.way == way] for way in WAYS
    }
    rewards = {
        way: [[a.reward for a in of] for _, of in groupby(found, lambda answer: answer.prompt)]
        for way, found in ways.items()
    }
    score = score_answers(
        rewards["sampled"], [reward for (reward,) in rewards["greedy"]], pass_reward=pass_reward
    )
    return {
        "sampled": _score(ways["sampled"], score.sampled, score.sampled_ci95, score.pass_at),
        "greedy": _score(ways["greedy"], score.greedy, score.greedy_ci95, {}),
    }


def _score(
    answers: Sequence[EvaluatedAnswer], mean: float | None, half: float | None, pass_at: dict[int, float]
) -> EvaluationScore:
    failed = sum(answer.reward is None for answer in answers)
    names = dict.fromkeys(name for answer in answers for name in answer.parts)
    return EvaluationScore(
        answers=len(answers) - failed,
        failed=failed,
        reward=mean,
        ci95=half,
        parts={
            name: fmean([answer.parts[name] for answer in answers if name in answer.parts]) for name in names
        },
        tokens=fmean([answer.tokens for answer in answers]),
        truncated=fmean([answer.truncated for answer in answers]),
        pass_at=pass_at,
    )


async def evaluate(
    sets: Sequence[EvaluatedSet],
    *,
    model: Path,
    tensors: Callable[[], Iterable[tuple[str, Any]]] | None,
    done: Callable[[int, int], None],
) -> list[list[EvaluatedAnswer]]:
    """The scored answers to each set, by prompt: the sampled ones, then the greedy one.

    Args:
        sets: what to ask; they have one engine.
        model: folder of the model, or of the base model whose weights are replaced.
        tensors: makes the weights to evaluate; None for those in the folder.
        done: called with the number of finished answers and of all to a set.

    Raises:
        SpecError: the data, the engine's options or a reward function do not fit.
        RLJobError: the engine or the scoring fails.
    """
    first = sets[0].config
    if first.spec.rollout.environment is not None:
        raise SpecError(
            "spec.rollout.environment",
            "no episodes are played here yet: spec.evaluation scores checkpoints in episodes while the job trains",
        )
    tokenizer = Tokenizer(model)
    asked = [_requests(one, model, tokenizer) for one in sets]
    async with AsyncExitStack() as opened:
        scorers = [Scorer(one.config) for one in sets]
        for scorer in scorers:
            opened.push_async_callback(scorer.close)
            await scorer.start()  # a function that does not load is reported before the model is loaded
        async with _engine(first, model, tensors, tokenizer) as engine:
            events = [await _answers(engine, [request for _, request in of], done) for of in asked]
        skip = first.spec.reward.skip_special_tokens
        return [
            list(
                await asyncio.gather(
                    *(
                        _scored(scorer, _unscored(found[request.id], text, request.id, tokenizer, skip=skip))
                        for text, request in of
                    )
                )
            )
            for scorer, of, found in zip(scorers, asked, events, strict=True)
        ]


def _requests(one: EvaluatedSet, model: Path, tokenizer: Tokenizer) -> list[tuple[str, Request]]:
    """Each prompt's text, with a request for each answer to it."""
    config = one.config
    prompts = PromptSource(config.spec.data, model_uri=str(model), reads=config.spec.reward.fields)
    prompts.check_rows()
    number = one.samples or USUAL_SAMPLES
    encode = prompt_encoder(config.spec.data, tokenizer)
    found = list[tuple[str, Request]]()
    for index in range(number if prompts.rows is None else min(number, prompts.rows)):
        tokens = encode(text := prompts.text(index))
        for sibling in range(one.group_size + 1):
            greedy = sibling == one.group_size
            found.append((text, _request(config, tokens, tokenizer, index, sibling, greedy=greedy)))
    return found


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


def _request(
    config: JobConfig, tokens: Sequence[int], tokenizer: Tokenizer, index: int, sibling: int, *, greedy: bool
) -> Request:
    sampling = config.spec.rollout.sampling
    return Request(
        id=f"{index}/{'greedy' if greedy else 'sampled'}/{sibling}",
        tokens=np.asarray(tokens, dtype=np.int32),
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop_tokens=tokenizer.stop_tokens,
        stop=tuple(sampling.stop),
        seed=stable_hash(f"{index}/{sibling}") & 0x7FFFFFFF,
    )


async def _answers(
    engine: Engine, requests: Sequence[Request], done: Callable[[int, int], None]
) -> dict[str, EngineEvent]:
    engine.submit(list(requests))
    found: dict[str, EngineEvent] = {}
    while len(found) < len(requests):
        found |= {event.id: event for event in await engine.events()}
        done(len(found), len(requests))
    return found


def _unscored(
    event: EngineEvent, text: str, name: str, tokenizer: Tokenizer, *, skip: bool
) -> EvaluatedAnswer:
    prompt, given, _ = name.split("/")
    index, way = int(prompt), next(way for way in WAYS if way == given)
    if not isinstance(event, Completed):
        hint = "; to leave room for it: --set rollout.sampling.maxTokens=N"
        error = f"{event}{hint if event.reason == PROMPT_TOO_LONG else ''}"
        return EvaluatedAnswer(index, way, text, "", 0, truncated=False, error=error)
    completion = tokenizer.completion(event.tokens, skip_special_tokens=skip)
    cut = event.finish == FinishReason.LENGTH
    return EvaluatedAnswer(index, way, text, completion, len(event.tokens), truncated=cut)


async def _scored(scorer: Scorer, answer: EvaluatedAnswer) -> EvaluatedAnswer:
    if answer.error:
        return answer
    finish = FinishReason.LENGTH if answer.truncated else FinishReason.STOP
    outcome = await scorer.score(ScoringJob(answer.prompt, False, answer.completion, finish=finish))
    if outcome.failure is not None:
        return replace(answer, error=str(outcome.failure))
    return replace(answer, reward=outcome.reward, parts=outcome.parts)


def check_answers(answers: Sequence[EvaluatedAnswer]) -> None:
    """Refuse an evaluation that scored nothing.

    Raises:
        SpecError: no answer has a score; the message has the first reason.
    """
    if answers and all(answer.error for answer in answers):
        raise SpecError("CHECKPOINT", f"no answer has a score; the first reason: {answers[0].error}")
