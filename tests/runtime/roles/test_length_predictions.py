"""The predictor of lengths runs beside the coordinator, and nothing that it does stops a job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.waiting import in_time
from world import job_config

from rljob_core.actions import LengthsPredicted, PredictLengths
from rljob_core.lengths import Estimate, GroupLengths, Prompt, PromptMeans
from rljob_core.lengths.quality import LEAST_CORRELATION, LEAST_GROUPS
from rljob_runtime.lengths import registry
from rljob_runtime.lengths.guard import GuardedPredictor
from rljob_runtime.roles.coordinator import length_predictions
from rljob_runtime.roles.coordinator.length_predictions import LengthPredictions
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts, Render


class Predictor:
    """Knows that a prompt's number is its length."""

    hangs = raises = False
    fits = 0

    def __init__(self) -> None:
        self.texts: list[str] = []

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        if self.raises:
            raise RuntimeError("no idea")
        if self.hangs:
            threading.Event().wait()
        self.texts += [prompt.text for prompt in prompts]
        return [Estimate(prompt.number + 1.0, 0.5) for prompt in prompts]

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        pass

    def fit(self) -> None:
        self.fits += 1


class Answers:
    """A predictor's answers, in order."""

    def __init__(self, predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
        def create(*_: Any, means: PromptMeans, **__: Any) -> GuardedPredictor:
            return GuardedPredictor("Ridge", lambda: predictor, means)

        monkeypatch.setattr(registry, "create_predictor", create)
        self.seen: asyncio.Queue[LengthsPredicted] = asyncio.Queue()
        self.asks = self.connect(lambda prompt, _: f"text {prompt}")

    def connect(self, render: Render) -> LengthPredictions:
        return LengthPredictions(job_config(), PromptTexts(render), self.seen.put_nowait)

    async def ask(self, *prompts: int, learnt: Any = ()) -> LengthsPredicted:
        await self.asks.ask(PredictLengths(prompts, tuple(learnt)))
        return await in_time(self.seen.get())


async def test_the_ranker_s_estimates_count_once_it_has_ordered_groups_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(predictor := Predictor(), monkeypatch)
    await answers.ask(0, learnt=[])
    await answers.ask(learnt=[(0, (1,))])  # the means know nothing before
    first = await answers.ask(*range(1, LEAST_GROUPS + 1))
    assert len(set(first.tokens)) == 1
    assert first.correlation == 0.0
    learnt = [(prompt, (prompt + 1, prompt + 2)) for prompt in range(1, LEAST_GROUPS + 1)]
    found = await answers.ask(500, 400, learnt=learnt)
    assert found == LengthsPredicted((500, 400), (501.0, 401.0), (0.5, 0.5), 1.0, 1.0)
    assert found.correlation >= LEAST_CORRELATION
    assert predictor.texts[-2:] == ["text 500", "text 400"]


async def test_learning_takes_little_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(n) for n in range(1000))  # a fit takes a second
    monkeypatch.setattr(length_predictions, "monotonic", lambda: next(clock))
    answers = Answers(predictor := Predictor(), monkeypatch)
    for prompt in range(40):
        await answers.ask(prompt, learnt=[(prompt, (1,))])
    assert 2 <= predictor.fits <= 4


async def test_one_that_raises_gives_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor()
    predictor.raises = True
    found = await Answers(predictor, monkeypatch).ask(1, 2)
    assert len(found.tokens) == 2
    assert found.correlation == 0.0


async def test_one_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor()
    predictor.hangs = True
    answers = Answers(predictor, monkeypatch)
    for prompt in range(5):
        await answers.asks.ask(PredictLengths((prompt,)))
    await asyncio.sleep(0.05)
    assert answers.seen.empty()


async def test_a_prompt_without_a_text_is_estimated_like_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(predictor := Predictor(), monkeypatch)

    def broken(prompt: int, _: bool) -> str:
        raise KeyError(prompt)

    answers.asks = answers.connect(broken)
    await answers.ask(3)
    assert predictor.texts == [""]
