"""Make the example model: a 0.86 M-parameter Qwen2 that can add and subtract, and often errs.

    python manifests/examples/models/make_chain_sum.py [--output FOLDER] [--steps 700] [--seed 0]

Reinforcement learning can only make likelier what is sampled sometimes. So the model is pre-trained on answers of
mixed quality: first right ones only, until it has the skill, then 40 % right and the rest off by a little, until
it errs like that. Its likeliest answer is mostly right, but it samples the right answer only about a third of the
time. Prompts are those of chain-sum.yaml in the folder above, rendered by the same code, under another seed.
Four minutes on one CPU core; the result is the same for the same seed, number of threads and version of torch.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import track
from ruamel.yaml import YAML
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from rljob_core.spec import DataSpec
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.rewards.registry import exact_match

HERE = Path(__file__).parent
CHARACTERS = "0123456789+-="
PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
CLEAN = 0.75
"""Share of the batches that teach the skill, with right answers only; those after them teach it to err."""
RIGHT = 0.4
"""Share of right answers in the latter."""
FURTHEST = 3
"""Largest error of the others."""
PROMPT, RESPONSE = 6, 5
"""Tokens at most: `12-34=`, and `-22` or `198` with its end."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character of a sum, and three special ones."""
    vocabulary = {token: i for i, token in enumerate([PAD, END, UNKNOWN, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=64,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Random weights."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            # 1/sqrt(hidden size); with the usual 0.02 so narrow a model needs several times the steps.
            initializer_range=0.088,
            dtype=torch.float32,
        )
    )


def prompt_source(seed: int) -> PromptSource:
    """The demo's prompts under another seed."""
    manifest = YAML(typ="safe", pure=True).load(HERE.parent / "chain-sum.yaml")
    data = DataSpec.model_validate(manifest["spec"]["data"]).model_copy(update={"seed": seed})
    return PromptSource(data, model_uri="")


def make_batch(
    source: PromptSource,
    tokenizer: PreTrainedTokenizerFast,
    *,
    first: int,
    rows: int,
    right: float,
    draw: random.Random,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts `first` and following with answers of which a share is right.

    Prompts are padded on the left and answers on the right, as an engine has them.

    Returns:
        Tokens, and labels (-100 on prompts and padding), int64 [rows, PROMPT + RESPONSE].
    """
    indices = range(first, first + rows)
    answers = [int(source.item(index)["answer"]) for index in indices]
    answers = [
        answer if draw.random() < right else answer + draw.choice([-1, 1]) * draw.randint(1, FURTHEST)
        for answer in answers
    ]
    prompts = tokenizer([source.text(index) for index in indices])["input_ids"]
    responses = tokenizer([f"{answer}{END}" for answer in answers])["input_ids"]
    tokens = torch.full((rows, PROMPT + RESPONSE), tokenizer.pad_token_id)
    labels = torch.full((rows, PROMPT + RESPONSE), -100)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens[row, PROMPT - len(prompt) : PROMPT] = torch.tensor(prompt)
        tokens[row, PROMPT : PROMPT + len(response)] = torch.tensor(response)
        labels[row, PROMPT : PROMPT + len(response)] = torch.tensor(response)
    return tokens, labels


def pretrain(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    source: PromptSource,
    *,
    steps: int,
    rows: int,
    learning_rate: float,
    seed: int,
) -> None:
    """Next-token prediction on the answers, with a one-cycle learning rate."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=steps, pct_start=0.1
    )
    model.train()
    for step in track(range(steps), description="pre-training"):
        right = 1.0 if step < CLEAN * steps else RIGHT
        tokens, labels = make_batch(source, tokenizer, first=step * rows, rows=rows, right=right, draw=draw)
        mask = torch.ones_like(tokens)
        mask[:, :PROMPT] = tokens[:, :PROMPT] != tokenizer.pad_token_id
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        loss = model(input_ids=tokens, attention_mask=mask, position_ids=positions, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.inference_mode()
def accuracy(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    source: PromptSource,
    *,
    prompts: int,
    greedy: bool,
) -> float:
    """Share of right answers to the first prompts of a source, greedily or at temperature 1."""
    inputs = tokenizer([source.text(i) for i in range(prompts)], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    choice = (
        {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    )
    output = model.generate(**inputs, max_new_tokens=RESPONSE, **choice)
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(exact_match(completion=text, item=source.item(i)) for i, text in enumerate(texts)) / prompts


def main(
    *,
    output: Annotated[Path, typer.Option(help="Folder to write the model into.")] = HERE / "chain-sum",
    steps: Annotated[int, typer.Option(min=1, help="Batches of pre-training.")] = 700,
    rows: Annotated[int, typer.Option(min=1, help="Sums in a batch.")] = 256,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak learning rate of AdamW.")] = 1.5e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights, the prompts and the errors.")] = 0,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts of the closing test.")] = 2000,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; part of what makes a result repeatable.")
    ] = 1,
) -> None:
    """Pre-train the example model of chain-sum.yaml and save it in Hugging Face format."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    disable_progress_bar()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    typer.echo(f"{model.num_parameters():,} parameters")
    # Far from the seeds of jobs, so that what they hold out was not seen here as this sequence.
    source = prompt_source(2**31 - 1 - seed)
    pretrain(model, tokenizer, source, steps=steps, rows=rows, learning_rate=learning_rate, seed=seed)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    held_out = prompt_source(1_000_003)
    for name, greedy in (("at temperature 1", False), ("greedily", True)):
        share = accuracy(model, tokenizer, held_out, prompts=prompts, greedy=greedy)
        typer.echo(f"right answers {name}: {share:.1%} of {prompts} held-out prompts")
    size = sum(file.stat().st_size for file in output.iterdir())
    typer.echo(f"wrote {output} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    typer.run(main)
