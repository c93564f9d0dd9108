"""The example model, the command that makes it, and the manifest that trains it."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

from rljob_core.spec import RLJob
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.model.tokenizer import Tokenizer

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"
MODEL = EXAMPLES / "models" / "chain-sum"
HELD_OUT = 1_000_003


@pytest.fixture(scope="module")
def command() -> Iterator[ModuleType]:
    """`make_chain_sum.py` as a module."""
    specification = importlib.util.spec_from_file_location(
        "make_chain_sum", EXAMPLES / "models" / "make_chain_sum.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["make_chain_sum"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["make_chain_sum"]


@pytest.fixture(scope="module")
def job() -> RLJob:
    return RLJob.model_validate(YAML(typ="safe", pure=True).load(EXAMPLES / "chain-sum.yaml"))


def test_the_model_is_small_and_in_hugging_face_format() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL)
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 5_000_000
    assert 800_000 < model.num_parameters() < 900_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_model_has_the_skill_but_rarely_shows_it(command: ModuleType) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    prompts = command.prompt_source(HELD_OUT)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampled = command.accuracy(model, tokenizer, prompts, prompts=400, greedy=False)
    greedy = command.accuracy(model, tokenizer, prompts, prompts=400, greedy=True)
    assert 0.22 < sampled < 0.42
    assert greedy > 0.75


def test_every_character_of_the_job_has_a_token_and_answers_fit(job: RLJob) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(MODEL), Tokenizer(MODEL)
    prompts = PromptSource(job.spec.data, model_uri="")
    for index in range(300):
        text, answer = prompts.text(index), prompts.item(index)["answer"]
        tokens = ours.encode(text)
        assert tokens == theirs(text)["input_ids"]
        assert len(tokens) == len(text)
        assert ours.decode(tokens) == text
        assert theirs.unk_token_id not in tokens
        assert len(ours.encode(answer)) + 1 <= job.spec.rollout.sampling.max_tokens
    assert ours.stop_tokens == {theirs.eos_token_id}


def test_the_command_makes_the_same_model_again(command: ModuleType, tmp_path: Path) -> None:
    import torch

    threads = torch.get_num_threads()
    try:
        for name, seed in (("one", 3), ("two", 3), ("other", 4)):
            command.main(
                output=tmp_path / name,
                steps=3,
                rows=8,
                learning_rate=1e-3,
                seed=seed,
                prompts=4,
                threads=1,
            )
    finally:
        torch.set_num_threads(threads)
    one, two, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")
    )
    assert one == two
    assert one != other
    assert Tokenizer(tmp_path / "one").encode("1+2=") == Tokenizer(MODEL).encode("1+2=")


def test_the_command_trains_on_answers_of_mixed_quality(command: ModuleType) -> None:
    tokenizer = command.make_tokenizer()
    source = command.prompt_source(7)
    tokens, labels = command.make_batch(
        source, tokenizer, first=0, rows=400, right=0.4, draw=random.Random(1)
    )
    right = 0
    for index in range(400):
        prompt = tokenizer.decode([t for t in tokens[index][: command.PROMPT] if t != tokenizer.pad_token_id])
        answer = tokenizer.decode([t for t in labels[index] if t >= 0], skip_special_tokens=True)
        assert prompt == source.text(index)
        assert labels[index][labels[index] >= 0][-1] == tokenizer.eos_token_id
        error = abs(int(answer) - int(source.item(index)["answer"]))
        assert error <= command.FURTHEST
        right += error == 0
    assert 0.33 < right / 400 < 0.47
