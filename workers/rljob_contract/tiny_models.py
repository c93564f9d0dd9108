"""Tiny causal models with random weights and a character-level tokenizer, in Hugging Face format."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

CHARACTERS = string.ascii_lowercase + string.digits + " .,:;=+-*/()?\n"
END = "<end>"

#: What an architecture needs besides the sizes that all share, and besides the size of a head under these names.
ARCHITECTURES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gemma": ({}, ("head_dim",)),
    "gemma2": ({"sliding_window": 6}, ("head_dim", "query_pre_attn_scalar")),
    "gemma3_text": ({"sliding_window": 6}, ("head_dim", "query_pre_attn_scalar")),
    "llama": ({}, ()),
    "mistral": ({"sliding_window": 6}, ("head_dim",)),
    "phi3": ({"sliding_window": 6}, ()),
    "qwen2": ({}, ()),
    "qwen3": ({}, ("head_dim",)),
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
    settings, of_a_head = ARCHITECTURES[architecture]
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
        **settings,
        **dict.fromkeys(of_a_head, hidden // 4),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END).save_pretrained(folder)
    return folder
