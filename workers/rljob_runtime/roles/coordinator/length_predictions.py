"""Runs the job's predictor of lengths beside the coordinator, in a thread of its own: no answer of it is waited for.

Learning takes at most a twentieth of the time. A predictor that raises is guarded (`rljob_runtime.lengths.guard`); one
that hangs answers nothing any more, and the coordinator decides without estimates. The thread is a daemon, as a
process must be able to end meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from rljob_core.actions import LengthsPredicted, PredictLengths
from rljob_core.config import JobConfig
from rljob_core.lengths import GroupLengths, PrequentialChoice, Prompt, PromptMeans
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts

log = logging.getLogger(__name__)

LEARNING_SHARE = 0.05
"""Share of the time in which the predictor may learn."""


class AsksLengths(Protocol):
    """What carries out `PredictLengths`."""

    async def ask(self, asked: PredictLengths) -> None:
        """Pass a question on; its answer, if any comes, is observed later."""


ConnectLengths = Callable[[Callable[[LengthsPredicted], None]], AsksLengths]
"""Makes one, by what takes the answers."""


@dataclass(frozen=True, slots=True)
class _Question:
    asked: PredictLengths
    texts: dict[int, str]


class LengthPredictions:
    """The predictor of one coordinator.

    Args:
        config: of the job.
        prompts: the texts of prompts.
        observe: takes the answers; called in the event loop.
    """

    def __init__(
        self, config: JobConfig, prompts: PromptTexts, observe: Callable[[LengthsPredicted], None]
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._observe = observe
        self._questions: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def ask(self, asked: PredictLengths) -> None:
        """Pass a question on; its answer is observed later."""
        wanted = [*asked.prompts, *(prompt for prompt, _ in asked.learnt)]
        texts = {prompt: await self._text(prompt) for prompt in wanted}
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._serve, args=(loop,), name="lengths", daemon=True)
            self._thread.start()
        self._questions.put(_Question(asked, texts))

    async def _text(self, prompt: int) -> str:
        try:
            return (await self._prompts.get(prompt, held_out=False)).text
        except Exception as error:  # of the data's own code; measuring the prompt reports it
            log.debug("prompt %d has no text: %r", prompt, error)
            return ""

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        from rljob_runtime.lengths.registry import create_predictor

        predictor, means = self._config.spec.rollout.length_predictor, PromptMeans()
        ranker = create_predictor(predictor.name, self._config, options=predictor.options, means=means)
        choice = PrequentialChoice(ranker, means)
        rested_until = 0.0
        while True:
            question = self._questions.get()
            self._learn(choice, question)
            if question.asked.learnt and monotonic() >= rested_until:
                begun = monotonic()
                choice.fit()
                ended = monotonic()
                rested_until = ended + (ended - begun) / LEARNING_SHARE
            try:
                loop.call_soon_threadsafe(self._observe, _answer(choice, question))
            except RuntimeError:  # the coordinator has ended
                return

    def _learn(self, choice: PrequentialChoice, question: _Question) -> None:
        limit = self._config.spec.rollout.sampling.max_tokens
        for prompt, tokens in question.asked.learnt:
            choice.observe(Prompt(prompt, question.texts[prompt]), GroupLengths(tokens, limit))


def _answer(choice: PrequentialChoice, question: _Question) -> LengthsPredicted:
    prompts = question.asked.prompts
    estimates = choice.predict([Prompt(prompt, question.texts[prompt]) for prompt in prompts])
    quality = choice.quality
    return LengthsPredicted(
        prompts,
        tuple(float(estimate.tokens) for estimate in estimates),
        tuple(float(estimate.spread) for estimate in estimates),
        quality.correlation,
        quality.recall,
    )
