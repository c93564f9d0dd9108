"""Tokens/s of the torch engine against plain `model.generate`, on the same tiny model, one thread each.

All figures count the requested response tokens. `generate` runs a batch until its longest response is complete; the
engine gives a slot to the next request as soon as a response is complete. Both sample at temperature 1; the engine also
computes log-probabilities, which `generate` does not.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.models import qwen2

VOCABULARY = 13
PROMPT = 16
#: A model this small gains nothing from more, and on a busy machine threads that wait for each other distort the times.
THREADS = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        longest: response tokens; where lengths vary they go from a sixteenth of it to all of it.
        slots: sequences at once, of a small and of a large batch.
        rounds: of each case, after one that warms up.
    """

    longest: int = 256
    slots: tuple[int, int] = (64, 256)
    rounds: int = 3


FULL = Sizes()
SMOKE = Sizes(longest=16, slots=(4, 8), rounds=1)
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE}


def make_model(folder: Path) -> Path:
    """Write a model of 0.86 M parameters."""
    return qwen2(
        folder, vocabulary=VOCABULARY, hidden=128, intermediate=384, heads=4, key_heads=4, context=2048
    )


class Generate:
    """Plain `model.generate`, in batches of `slots`."""

    def __init__(self, model: Path, *, slots: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(THREADS)
        self._model = AutoModelForCausalLM.from_pretrained(model).eval()
        self._slots = slots

    def __call__(self, lengths: Sequence[int]) -> None:
        """Generate responses of at least these lengths."""
        import torch

        for first in range(0, len(lengths), self._slots):
            batch = lengths[first : first + self._slots]
            prompts = torch.randint(VOCABULARY, (len(batch), PROMPT))
            longest = max(batch)
            self._model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                min_new_tokens=longest,
                max_new_tokens=longest,
            )


class Ours:
    """Our torch engine with `slots` slots."""

    def __init__(self, model: Path, *, slots: int) -> None:
        from rljob_runtime.engines.registry import create_engine

        self._loop = asyncio.new_event_loop()
        self._engine = create_engine("Torch", model_path=model, options={"slots": slots, "threads": THREADS})
        self._loop.run_until_complete(self._engine.start())

    def __call__(self, lengths: Sequence[int]) -> None:
        """Generate responses of these lengths."""
        self._loop.run_until_complete(self._generate(lengths))

    async def _generate(self, lengths: Sequence[int]) -> None:
        from rljob_core.ports import Request

        random = np.random.default_rng()
        self._engine.submit(
            [
                Request(
                    id=str(number),
                    tokens=random.integers(VOCABULARY, size=PROMPT, dtype=np.int32),
                    temperature=1.0,
                    top_p=1.0,
                    max_tokens=length,
                    stop_tokens=frozenset(),
                    stop=(),
                    seed=number,
                )
                for number, length in enumerate(lengths)
            ]
        )
        done = 0
        while done < len(lengths):
            done += len(await self._engine.events())

    def close(self) -> None:
        """Stop the engine."""
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()


def seconds(work: Callable[[], Any]) -> float:
    """Wall-clock of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def compare(name: str, model: Path, *, slots: int, lengths: Sequence[int], rounds: int) -> dict[str, Any]:
    """Run both on the same lengths in turn, after a warm-up round; rates are of the median times."""
    theirs, ours = Generate(model, slots=slots), Ours(model, slots=slots)
    times = [(seconds(lambda: theirs(lengths)), seconds(lambda: ours(lengths))) for _ in range(1 + rounds)][
        1:
    ]
    ours.close()
    tokens = sum(lengths)
    generate, engine = (tokens / statistics.median(column) for column in zip(*times, strict=True))
    return {
        "case": name,
        "slots": slots,
        "responses": len(lengths),
        "tokens": tokens,
        "generate_tokens_per_second": round(generate),
        "engine_tokens_per_second": round(engine),
        "ratio": round(engine / generate, 2),
    }


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Run all cases and print them as a table.

    Returns:
        `cases`: one row each, with tokens/s of both and their ratio.
    """
    few, many = sizes.slots
    equal = sizes.longest // 2

    def spread(count: int) -> list[int]:
        return [int(length) for length in np.linspace(sizes.longest // 16, sizes.longest, count)]

    varied = spread(few)
    four = [int(length) for length in np.random.default_rng(0).permutation(spread(4 * few))]
    print(f"{'engine against model.generate':32}{'slots':>6}{'generate':>12}{'engine':>12}{'ratio':>8}")
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        for name, slots, lengths in (
            ("one batch, equal lengths", few, [equal] * few),
            ("one batch, equal lengths", many, [equal] * many),
            ("one batch, lengths 1:16", few, varied),
            ("four batches, lengths 1:16", few, four),
        ):
            case = compare(name, model, slots=slots, lengths=lengths, rounds=sizes.rounds)
            rates = f"{case['generate_tokens_per_second']:12,}{case['engine_tokens_per_second']:12,}"
            print(f"{name:32}{slots:6}{rates}{case['ratio']:8.2f}", flush=True)
            cases.append(case)
    return {"cases": cases}
