"""Makes the models of benchmarks: Qwen2 with random weights."""

from __future__ import annotations

from pathlib import Path


def qwen2(
    folder: Path,
    *,
    vocabulary: int,
    hidden: int,
    intermediate: int,
    heads: int,
    key_heads: int,
    layers: int = 4,
    context: int = 4096,
    end: int | None = None,
    dtype: str = "float32",
) -> Path:
    """Write a Qwen2 with tied embeddings into a folder.

    Args:
        folder: that the model is written to; created if missing.
        vocabulary: tokens.
        hidden: size of the hidden state.
        intermediate: size of the layer within an MLP.
        heads: of attention.
        key_heads: of its keys and values.
        layers: decoder layers.
        context: positions.
        end: the token that ends a response; None if no token does.
        dtype: name of a torch dtype that the weights are written in.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


#: Parameters of `for_gpu` in millions.
GPU_MILLIONS = 374


def for_gpu(folder: Path) -> Path:
    """Write a Qwen2 of 374 M parameters in bfloat16, as wide and deep as fills a GPU; it knows 7,168 tokens."""
    return qwen2(
        folder,
        vocabulary=VOCABULARY,
        hidden=1024,
        intermediate=4096,
        heads=16,
        key_heads=4,
        layers=24,
        context=32_768,
        dtype="bfloat16",
    )


#: Tokens of `in_proportion`, and its parameters in millions.
VOCABULARY, MILLIONS = 7168, 6.7


def in_proportion(folder: Path) -> Path:
    """Write a Qwen2 of 6.7 M parameters with the proportions of Qwen2-0.5B, and a tokenizer of words `w0`, `w1`, ….

    As there, heads have 64 dimensions, an MLP is 5.4 times as wide as the hidden state, and 27 % of the parameters are
    the embeddings that give the logits (151,936 · 896 of 494 M there).
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    qwen2(folder, vocabulary=VOCABULARY, hidden=256, intermediate=1392, heads=4, key_heads=1, end=0)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0", pad_token="w0").save_pretrained(folder)
    return folder
