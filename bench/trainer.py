"""A training step on one batch: ours with packed and with padded groups, and the GRPO step of TRL's trainer.

A step is the forward pass, the backward pass and AdamW's update; nothing is generated, and old log-probabilities are
given. All three start with the same weights, have the same gradient (`tests/engines/test_loss_trl.py`) and use as many
threads. TRL's step is its own loss on its own batch: prompts padded on the left, responses on the right. Rounds
alternate; figures are medians over rounds. Memory is the peak of a step minus the resident memory before it.

On a GPU (`--gpu`) ours are compared with each other, in bfloat16, at prompts of up to 16,384 tokens; memory is the peak
that torch allocated. TRL's step would not fit: it computes the whole batch at once.

*Ideal* is the gain of packing if time were proportional to tokens: G·(P + R) / (P + G·R).
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.models import GPU_MILLIONS, MILLIONS, VOCABULARY, for_gpu, in_proportion

GROUP = 8
SHORTEST, LONGEST = 64, 256
THREADS = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        prompts: tokens of a prompt, a case each: 256, then 1:1, 4:1 and 16:1 to the mean response of 160.
        groups: of 8 responses each, in a batch.
        rounds: of each case, after one that warms up.
        gpu: whether a GPU computes; TRL takes no part then.
    """

    prompts: tuple[int, ...] = (256, 160, 640, 2560)
    groups: int = 2
    rounds: int = 3
    gpu: bool = False


FULL = Sizes()
SMOKE = Sizes(prompts=(32,), groups=1, rounds=1)
GPU = Sizes(prompts=(256, 1024, 4096, 16_384), groups=4, rounds=7, gpu=True)
SIZES = {"full": FULL, "quick": Sizes(prompts=(256, 640), rounds=2), "smoke": SMOKE, "gpu": GPU}
#: Options on a GPU; a forward holds the longest group.
GPU_OPTIONS = {"device": "cuda", "dtype": "bfloat16", "forwardTokens": 16_384 + GROUP * LONGEST}


@dataclass(frozen=True)
class Group:
    """A prompt and its responses."""

    prompt: list[int]
    responses: list[list[int]]


def make_groups(prompt: int, *, groups: int) -> list[Group]:
    """Groups whose responses' lengths are spread evenly between the shortest and the longest."""
    random = np.random.default_rng(0)
    lengths = np.linspace(SHORTEST, LONGEST, GROUP).astype(int)

    def tokens(count: int) -> list[int]:
        return [int(t) for t in random.integers(1, VOCABULARY, count)]

    return [Group(tokens(prompt), [tokens(int(n)) for n in lengths]) for _ in range(groups)]


class Ours:
    """The torch backend."""

    def __init__(self, model: Path, groups: Sequence[Group], *, packing: str, gpu: bool) -> None:
        from rljob_contract.samples import job_config, sample, segment
        from rljob_core.trajectory import Source
        from rljob_runtime.training.registry import create_backend

        config = job_config(
            model,
            algorithm={"learningRate": 1e-6, "importanceCap": 1e9},
            sampling={"maxTokens": LONGEST},
            trainer={
                "options": {"threads": THREADS, "packing": packing, **(GPU_OPTIONS if gpu else {})},
                "microBatchTokens": 1 << 20,
            },
        )
        self._backend = create_backend(config, rank=0, world_size=1, model_path=model)
        self._samples = [
            sample(
                f"g{g}.{r}",
                [
                    segment(Source.PROMPT, group.prompt),
                    segment(Source.MODEL, tokens, logprobs=[-np.log(VOCABULARY)] * len(tokens)),
                ],
                advantage=(-1.0) ** r,
            )
            for g, group in enumerate(groups)
            for r, tokens in enumerate(group.responses)
        ]

    def __call__(self) -> None:
        """A step."""
        self._backend.begin_step(0)
        self._backend.accumulate(self._samples)
        self._backend.finish_step()


class Trl:
    """The loss, backward and step of TRL's GRPOTrainer."""

    def __init__(self, model: Path, groups: Sequence[Group], *, folder: Path) -> None:
        import torch
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        rows = [(group.prompt, tokens) for group in groups for tokens in group.responses]
        self._trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            reward_funcs=lambda **_: 0.0,
            train_dataset=Dataset.from_dict({"prompt": ["w1"] * len(rows)}),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            args=GRPOConfig(
                output_dir=str(folder),
                per_device_train_batch_size=len(rows),
                num_generations=GROUP,
                max_completion_length=LONGEST,
                loss_type="grpo",
                learning_rate=1e-6,
                beta=0.0,
                gradient_checkpointing=False,
                report_to=[],
                use_cpu=True,
                bf16=False,
            ),
        )
        self._trainer.current_gradient_accumulation_steps = 1
        self._trainer.create_optimizer()
        self._trainer.model.train()
        torch.set_num_threads(THREADS)
        width = max(len(tokens) for _, tokens in rows)

        def padded(values: Callable[[list[int]], list[float]]) -> Any:
            return torch.tensor([values(t) + [0] * (width - len(t)) for _, t in rows])

        self._inputs = {
            "prompt_ids": torch.tensor([prompt for prompt, _ in rows]),
            "prompt_mask": torch.ones(len(rows), len(rows[0][0]), dtype=torch.long),
            "completion_ids": padded(list),
            "completion_mask": padded(lambda t: [1] * len(t)),
            "old_per_token_logps": padded(lambda t: [-float(np.log(VOCABULARY))] * len(t)).float(),
            "advantages": torch.tensor([(-1.0) ** (i % GROUP) for i in range(len(rows))]),
            "num_items_in_batch": torch.tensor(sum(len(t) for _, t in rows)),
        }

    def __call__(self) -> None:
        """A step."""
        import torch

        trainer = self._trainer
        loss = trainer._compute_loss(trainer.model, self._inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def seconds_of(step: Callable[[], None]) -> float:
    """Time a step, to the end of all that it started on a GPU."""
    started = time.perf_counter()
    step()
    _synchronize()
    return time.perf_counter() - started


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_on_gpu(step: Callable[[], None]) -> int:
    """Bytes: the peak of what torch allocated during a step, minus what it had allocated before it."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return torch.cuda.max_memory_allocated() - before


def peak_of(step: Callable[[], None]) -> int:
    """Bytes: the peak of resident memory during a step, minus the resident memory before it."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    before = _status("VmRSS")
    step()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key}:")]
    return int(line.split()[1]) << 10


def compare(model: Path, prompt: int, sizes: Sizes, scratch: Path) -> dict[str, Any]:
    """All of them on one batch."""
    made = make_groups(prompt, groups=sizes.groups)
    steps: dict[str, Callable[[], None]] = {
        "padded": Ours(model, made, packing="Padded", gpu=sizes.gpu),
        "packed": Ours(model, made, packing="SharedPrompt", gpu=sizes.gpu),
    }
    if not sizes.gpu:
        steps = {"trl": Trl(model, made, folder=scratch), **steps}
    for step in steps.values():
        step()  # warm
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(sizes.rounds):
        for name, step in steps.items():
            times[name].append(seconds_of(step))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    response = statistics.mean(len(r) for g in made for r in g.responses)
    ideal = GROUP * (prompt + response) / (prompt + GROUP * response)
    against_trl = {f"trl_over_{name}": seconds["trl"] / seconds[name] for name in steps if "trl" in seconds}
    return {
        "prompt": prompt,
        "response": response,
        "seconds": seconds,
        **against_trl,
        "padded_over_packed": seconds["padded"] / seconds["packed"],
        "ideal": ideal,
        "of_ideal": seconds["padded"] / seconds["packed"] / ideal,
        "peak_bytes": {name: (peak_on_gpu if sizes.gpu else peak_of)(step) for name, step in steps.items()},
    }


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Run and print."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    what = f"{GPU_MILLIONS} M parameters, bfloat16" if sizes.gpu else f"{MILLIONS} M parameters, float32"
    where = _gpu_name() if sizes.gpu else f"{THREADS} threads"
    print(
        f"Qwen2 of {what}, {where}; {sizes.groups} groups of {GROUP}, responses of {SHORTEST} to {LONGEST} tokens\n"
        f"{'prompt':>6} {'TRL s':>7} {'padded s':>8} {'packed s':>8} {'TRL/padded':>10} {'TRL/packed':>10} "
        f"{'padded/packed':>13} {'of ideal':>8}  peak MB"
    )
    found = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        model = (for_gpu if sizes.gpu else in_proportion)(Path(folder) / "model")
        for prompt in sizes.prompts:
            row = compare(model, prompt, sizes, Path(folder) / "trl")
            found.append(row)
            seconds = row["seconds"]
            peaks = ", ".join(f"{name} {size >> 20:,}" for name, size in row["peak_bytes"].items())
            print(
                f"{prompt:6d} {_column(seconds, 'trl', 7)} {seconds['padded']:8.3f} {seconds['packed']:8.3f} "
                f"{_column(row, 'trl_over_padded', 10)} {_column(row, 'trl_over_packed', 10)} "
                f"{row['padded_over_packed']:13.2f} {row['of_ideal']:8.0%}  {peaks}",
                flush=True,
            )
    return {"threads": THREADS, "groups": sizes.groups, "rows": found}


def _gpu_name() -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def _column(row: dict[str, Any], name: str, width: int) -> str:
    """A figure, or a dash where it was not measured."""
    return f"{row[name]:{width}.2f}" if name in row else f"{'–':>{width}}"
