"""The base for engines of one's own samples and ends responses as the engine Torch does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from rljob_contract.engine_requests import ask, completed, gather
from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import Engine, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.engines.stepped import SteppedEngine, sample
from rljob_runtime.engines.torch import sampler as engine_torch_sampler
from rljob_runtime.model.tokenizer import Tokenizer


class Plain(SteppedEngine):
    """A Hugging Face model without any cache."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, slots=3)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def take(self, tensors: Mapping[str, Any] | None) -> None:
        assert tensors is None

    def logits(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        with torch.no_grad():
            rows = [
                self._model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0, -1]
                for tokens in sequences
            ]
        return torch.stack(rows).numpy()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), spread=0.3)


@pytest.fixture
async def engines(model: Path) -> AsyncIterator[list[Engine]]:
    options = {"slots": 3, "threads": 1, "device": "cpu"}
    made = [Plain(model), create_engine("Torch", model_path=model, options=options)]
    for engine in made:
        await engine.start()
        await engine.swap(0, None, "Update")
    yield made
    for engine in made:
        await engine.close()


async def test_responses_are_those_of_the_engine_torch(engines: list[Engine], model: Path) -> None:
    prompt = Tokenizer(model).encode("1+2=")
    plain = [ask(str(seed), 24, seed=seed, prompt=prompt) for seed in range(8)]
    requests = [
        *plain[:2],
        replace(plain[2], temperature=0.0),
        replace(plain[3], temperature=0.7, top_p=0.8),
        replace(plain[4], stop_tokens=frozenset(range(1, 20))),
        replace(plain[5], stop=("e", "no such")),
        replace(plain[6], top_p=0.3),
        replace(plain[7], stop=("qq", "7", "(")),
    ]
    found = []
    for engine in engines:
        engine.submit(requests)
        found.append(await completed(engine, [request.id for request in requests]))
    for name, expected in found[1].items():
        response = found[0][name]
        assert response.tokens.tolist() == expected.tokens.tolist()
        assert response.finish == expected.finish
        np.testing.assert_allclose(response.logprobs, expected.logprobs, atol=1e-4)
    assert {done.finish for done in found[0].values()} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.2])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_tokens_are_drawn_as_torch_draws_them(temperature: float, top_p: float) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (400, 37)).astype(np.float32)
    settings = {
        "uniform": random.uniform(1e-6, 1, 400).astype(np.float32),
        "temperature": np.full(400, temperature, np.float32),
        "top_p": np.full(400, top_p, np.float32),
    }
    tokens, logprobs = sample(logits, **settings)
    expected, their_logprobs = engine_torch_sampler.sample(torch.from_numpy(logits), **settings)
    # Sums in another order may turn a draw at the very edge of a token's share.
    assert (tokens != expected).sum() <= 1
    same = tokens == expected
    np.testing.assert_allclose(logprobs[same], their_logprobs[same], atol=1e-5)


class Failing(Plain):
    """Computes what is no probability, then fails, then is well again."""

    steps = 0

    def logits(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        self.steps += 1
        if self.steps == 1:
            return np.full((len(sequences), 40), np.nan, np.float32)
        if self.steps == 2:
            raise MemoryError("no room")
        if self.steps == 3:
            return np.zeros(40, np.float32)
        return super().logits(sequences)


async def test_a_step_that_fails_ends_its_responses_and_no_others(model: Path) -> None:
    engine = Failing(model)
    await engine.start()
    try:
        reasons = []
        for name in ("a", "b", "c"):
            engine.submit([ask(name, 3)])
            event = (await gather(engine, [name]))[name]
            assert isinstance(event, Stopped)
            assert event.failure
            reasons.append(str(event))
        assert reasons[0].startswith("NotFinite: version -1 ")
        assert reasons[1] == "EngineFailed: MemoryError: no room"
        assert reasons[2] == "EngineFailed: ValueError: logits of 1 sequences have the shape (40,)"
        engine.submit([ask("d", 3)])
        assert len((await completed(engine, ["d"]))["d"].tokens) == 3
    finally:
        await engine.close()
