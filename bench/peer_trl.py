"""Trains the demo job by TRL's `GRPOTrainer`, synchronous and in one process; `bench.peer` runs and times it.

`python -m bench.peer_trl MANIFEST STEPS FOLDER` writes the trained model to FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rljob_cli.manifest.load import load_job
from rljob_runtime.data.prompts import PromptSource


def matches(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """As the reward function `exact_match`, for TRL."""
    return [
        float(text.strip() == expected.strip()) for text, expected in zip(completions, answer, strict=True)
    ]


def main(manifest: Path, steps: int, folder: Path) -> None:
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
    trainer.train()
    trainer.save_model(str(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
