"""Trains the demo job by TRL's `GRPOTrainer`, synchronous and in one process; `bench.peer` runs and times it.

`python -m bench.peer_trl MANIFEST STEPS FOLDER [EVERY PROMPTS]` writes the trained model to FOLDER; with EVERY, it is
scored by PROMPTS held-out prompts every so many steps, into FOLDER/scores.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.heldout import score
from rljob_cli.manifest.load import load_job
from rljob_core.spec import RLJobSpec
from rljob_runtime.data.prompts import PromptSource


def matches(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """As the reward function `exact_match`, for TRL."""
    return [
        float(text.strip() == expected.strip()) for text, expected in zip(completions, answer, strict=True)
    ]


class Scoring(TrainerCallback):  # type: ignore[misc]
    """Scores the model every so many steps, and counts the tokens that it was trained on.

    Attributes:
        scores: of each score the step, when it was known, the seconds that scoring took before and with it, the reward,
            and the tokens of all responses until then.
    """

    def __init__(self, spec: RLJobSpec, tokenizer: Any, *, every: int, prompts: int) -> None:
        self.scores: list[dict[str, float]] = []
        self._spec, self._tokenizer, self._every, self._prompts = spec, tokenizer, every, prompts
        self._tokens = self._scoring = 0.0

    def on_log(self, *positional: Any, logs: dict[str, Any], model: Any, **_: Any) -> None:
        """Take a step's log, which has the mean length of its responses."""
        if "completions/mean_length" not in logs:
            return
        batch = self._spec.data.prompts_per_step * self._spec.data.group_size
        self._tokens += float(logs["completions/mean_length"]) * batch
        step = positional[1].global_step  # the arguments, the state, the control
        if step % self._every:
            return
        begun, random = time.time(), torch.get_rng_state()
        model.eval()
        reward = score(model, self._tokenizer, self._spec, prompts=self._prompts)
        torch.set_rng_state(random)
        model.train()
        self._scoring += time.time() - begun
        self.scores.append(
            {"step": step, "at": time.time(), "scoring": self._scoring, "reward": reward,
             "tokens": round(self._tokens)}
        )  # fmt: skip


def main(manifest: Path, steps: int, folder: Path, every: int = 0, prompts: int = 0) -> None:
    """Train the manifest's job for so many steps, with TRL's defaults where the two could differ."""
    spec = load_job(manifest).spec
    model = spec.model.uri.removeprefix("file://")
    source = PromptSource(spec.data, model_uri=model)
    rows = [
        {"prompt": source.text(i), "answer": str(source.item(i)["answer"])}
        for i in range(steps * spec.data.prompts_per_step)
    ]
    arguments = GRPOConfig(
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=spec.data.prompts_per_step * spec.data.group_size,
        gradient_accumulation_steps=1,
        num_generations=spec.data.group_size,
        max_completion_length=spec.rollout.sampling.max_tokens,
        temperature=spec.rollout.sampling.temperature,
        learning_rate=spec.algorithm.learning_rate,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=matches, args=arguments, train_dataset=Dataset.from_list(rows)
    )
    scoring = None
    if every:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        scoring = Scoring(spec, tokenizer, every=every, prompts=prompts)
        trainer.add_callback(scoring)
    trainer.train()
    trainer.save_model(str(folder))
    if scoring is not None:
        (folder / "scores.json").write_text(json.dumps(scoring.scores))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
