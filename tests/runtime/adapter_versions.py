"""A job that trains adapters: a version as its trainer publishes it, and what the model says with it by `peft`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rljob_contract.samples import job_config, random_samples
from rljob_core.config import JobConfig
from rljob_core.ports import Completed, Engine, Request
from rljob_runtime.training.registry import create_backend
from rljob_runtime.weights.create import create_weights

VERSION = 3
PROMPTS = ([5, 17, 3, 9], list(range(1, 30)))
LENGTH = 24


class AdapterVersion:
    """Adapters of a few steps, stored as files and saved as a checkpoint.

    Args:
        model: folder of the base model.
        folder: for the files and the checkpoint.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._saved = folder / "saved"
        self._config = self._job(folder / "weights")
        trainer = create_backend(self._config, rank=0, world_size=1, model_path=model)
        for number in range(VERSION):
            trainer.begin_step(number)
            trainer.accumulate(random_samples(16, seed=number))
            trainer.finish_step()
        self._saved.mkdir()
        trainer.save(str(self._saved))
        store = create_weights(self._config, "trainer")
        self.manifest = store.write(
            version=VERSION, parent="", proposal=None, key="v3-a1", tensors=trainer.tensors()
        )
        store.close()

    def _job(self, weights: Path) -> JobConfig:
        config = job_config(
            self._model,
            trainer={"options": {"threads": 1}},
            algorithm={"learningRate": 0.1},
            lora={"rank": 4, "alpha": 8.0},
            weights={"transport": "Files"},
        )
        return config.model_copy(update={"weights_uri": str(weights)})

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """What a rollout worker gives its engine."""
        store = create_weights(self._config, "rollout")
        yield from store.read(self.manifest)
        store.close()

    def greedy(self) -> tuple[list[list[int]], list[list[int]]]:
        """Per prompt, the likeliest tokens of the base model, and of the one that `peft` merges."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        def base() -> Any:
            return AutoModelForCausalLM.from_pretrained(
                self._model, dtype=torch.float32, attn_implementation="eager"
            )

        merged = PeftModel.from_pretrained(base(), self._saved).merge_and_unload()
        plain, changed = ([_greedy(one.eval(), prompt) for prompt in PROMPTS] for one in (base(), merged))
        return plain, changed


def _greedy(model: Any, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(LENGTH):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    found: list[int] = tokens[0, len(prompt) :].tolist()
    return found


async def check_generates_merged(engine: Engine, published: AdapterVersion) -> None:
    """An engine that has started, given the version, says what the merged model does; and the base model before."""
    before, after = published.greedy()
    assert before != after
    await engine.swap(0, None, "Update")
    assert await _said(engine, 0) == before
    await engine.swap(VERSION, published.tensors(), "Update")
    assert await _said(engine, VERSION) == after
    await engine.swap(VERSION + 1, None, "Update")  # a job that went back to its beginning
    assert await _said(engine, VERSION + 1) == before


async def _said(engine: Engine, version: int) -> list[list[int]]:
    requests = [
        Request(
            id=str(number),
            tokens=np.array(prompt, np.int32),
            temperature=0.0,
            top_p=1.0,
            max_tokens=LENGTH,
            stop_tokens=frozenset(),
            stop=(),
            seed=0,
        )
        for number, prompt in enumerate(PROMPTS)
    ]
    engine.submit(requests)
    done: dict[str, list[int]] = {}
    while len(done) < len(requests):
        for event in await engine.events():
            assert isinstance(event, Completed), event
            assert set(event.versions.tolist()) == {version}
            done[event.id] = event.tokens.tolist()
    return [done[request.id] for request in requests]
