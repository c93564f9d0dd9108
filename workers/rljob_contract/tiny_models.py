"""Tiny causal models with random weights and a character-level tokenizer, in Hugging Face format."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

CHARACTERS = string.ascii_lowercase + string.digits + " .,:;=+-*/()?\n"
END = "<end>"

#: What an architecture needs besides the sizes that all share.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    "llama": {},
    "mistral": {"head_dim": 8, "sliding_window": 6},
    "phi3": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
}


def tiny_model(
    folder: Path,
    *,
    architecture: str = "qwen2",
    hidden: int = 32,
    layers: int = 2,
    context: int = 256,
    seed: int = 0,
    spread: float = 0.1,
) -> Path:
    """Write a model and its tokenizer into a folder.

    Args:
        folder: where; made if it does not exist.
        architecture: model type, a key of `ARCHITECTURES`.
        hidden: hidden size; four heads, two of them for keys and values.
        layers: decoder layers.
        context: positions.
        seed: of the weights.
        spread: standard deviation of the weights; the larger, the less uniform what the model says.

    Returns:
        The folder.
    """
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    vocabulary = {character: token for token, character in enumerate([END, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **ARCHITECTURES[architecture],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END).save_pretrained(folder)
    return folder
