"""Scores a model folder with transformers alone, without this project's engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_cli.manifest.load import load_job
from rljob_core.spec import RLJobSpec
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.rewards.registry import exact_match

SEED = 1_000_003  # far from the seeds of the runs


def right_answers(model_folder: Path, manifest: Path, *, prompts: int) -> float:
    """Share of right answers, sampled at temperature 1, to prompts of the manifest's data that no run saw."""
    spec = load_job(manifest).spec
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    return score(
        model, AutoTokenizer.from_pretrained(model_folder, padding_side="left"), spec, prompts=prompts
    )


@torch.inference_mode()
def score(model: Any, tokenizer: Any, spec: RLJobSpec, *, prompts: int) -> float:
    """Mean held-out reward of a model in memory; its tokenizer pads on the left."""
    torch.manual_seed(SEED)
    source = PromptSource(
        spec.data.model_copy(update={"seed": SEED}), model_uri=spec.model.uri.removeprefix("file://")
    )
    inputs = tokenizer([source.text(i) for i in range(prompts)], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    tokens = model.generate(
        **inputs,
        max_new_tokens=spec.rollout.sampling.max_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    texts = tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = sum(exact_match(completion=text, item=source.item(i)) for i, text in enumerate(texts))
    return right / prompts
