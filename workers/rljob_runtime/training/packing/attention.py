"""Attention over groups packed as `[prompt][response 1]…[response G]`, several groups in one sequence.

A prompt's tokens attend to earlier ones of the prompt; a response's tokens to the prompt and to earlier ones of the
response, never to a sibling's or another group's. Positions in every response continue from the prompt, so each
response is computed as if it stood behind a prompt of its own, while the prompt is computed once: P + G·R tokens
instead of G·(P + R), as in Periodic Asynchrony's shared-prompt attention.

`attend` is registered with transformers as an attention implementation, so every model that calls its attention through
transformers' interface can use it. It needs no mask: the pairs of tokens that attend to each other form a few dense or
causal blocks. On a CPU, torch's flash kernel computes these block by block, and they are combined by their logarithms
of sums, as flash attention combines its tiles (arXiv 2205.14135, section 3.1); the kernel's own backward then gives
each block's part of the gradient. Short groups are computed all at once. Soft-capped scores and
sliding windows are computed block by block too, but not fused. On a GPU it is FlexAttention with a block mask (`flex`),
and what that has no kernel for is computed block by block.

The two flash kernels are private operators of torch, used here and nowhere else, because the public function does not
return the logarithms of sums; `tests/engines/test_library_internals.py` names them when an upgrade breaks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rljob_runtime.model.causal import attention_can_be_replaced
from rljob_runtime.training.packing.flex import fits, flex
from rljob_runtime.training.packing.layout import Layout, places

#: The attention's name for `set_attn_implementation`.
NAME = "rljob_shared_prompt"
#: Model types for which tests show that packing changes neither loss nor gradients.
EXACT = frozenset({"gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"})
_SUPPORTED_LAYERS = {"full_attention", "sliding_attention", "attention"}
#: Fields of model configurations that list the kinds of layers. A layer of another kind than attention, for instance a
#: recurrent one, would read a sibling's tokens as a response's own past.
_LAYERS = ("layer_types", "layers_block_type", "block_types")

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

#: Tokens of a group up to which it is short. With groups of 64 tokens, one kernel takes a third of the time of blocks
#: at 4 heads of 32, and two thirds at 14 heads of 64; with groups of 130 there is no difference.
LONGEST_SHORT = 64


def supports_shared_prompts(model: Any) -> bool:
    """Return False if `attend` is known not to work as a transformers model's attention.

    Every layer must be attention without sinks, which `attend` does not support. True does not prove that packing is
    exact: for model types outside `EXACT`, it is not tested whether the model passes the layout on to its layers, and
    whether anything but attention mixes tokens.
    """
    config = model.config.get_text_config()
    layers = {kind for name in _LAYERS for kind in getattr(config, name, None) or ()}
    sinks = any("sink" in name.rpartition(".")[2] for name, _ in model.named_parameters())
    return attention_can_be_replaced(model) and layers <= _SUPPORTED_LAYERS and not sinks


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (the layout replaces the mask)
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    shared_prompts: Layout | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Compute one layer's attention, with the signature that transformers requires.

    Args:
        module: the layer.
        query: [1, heads, n, d].
        key: [1, key heads, n, d]; `heads` is a multiple of `key heads`.
        value: [1, key heads, n, d].
        attention_mask: not used.
        scaling: factor of the scores; d^-0.5 by default.
        dropout: must be 0.
        sliding_window: to how many tokens a token attends at most, itself included; None for all.
        softcap: scores are `softcap · tanh(score / softcap)`; None for no cap.
        shared_prompts: the layout of the groups, which fill the sequence.

    Returns:
        the output [1, n, heads, d], and None instead of attention weights.

    Raises:
        ValueError: the layer needs a feature that this attention does not support.
    """
    if shared_prompts is None:
        raise ValueError(
            f"{type(module).__name__} does not pass on what is packed: its model cannot be packed"
        )
    if dropout or other.get("s_aux") is not None or len(query) != 1:
        raise ValueError(
            f"{type(module).__name__} needs dropout, sinks or batches: its model cannot be packed"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    longest = max(group.longest for group in shared_prompts)
    window = sliding_window if sliding_window is not None and sliding_window < longest else None
    if query.is_cuda and fits(query, value, softcap):
        out = flex(query, key, value, shared_prompts, scale=scale, window=window)
    elif not query.is_cuda and window is None and softcap is None and query.shape[-1] == value.shape[-1]:
        # Forward and backward add blocks up: in bfloat16, each sum would be rounded once more.
        wide = torch.promote_types(query.dtype, torch.float32)
        widened = query.to(wide), key.to(wide), value.to(wide)
        if are_short(shared_prompts):
            found = attend_filled(*widened, shared_prompts, scale=scale)
        else:
            found = _Blocks.apply(*widened, shared_prompts, scale)
        out = found.to(query.dtype)
    else:
        out = _explicit(query, key, value, shared_prompts, scale=scale, window=window, softcap=softcap)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)


# ------------------------------------------------------------------------------------------ fused, on a CPU


class _Blocks(torch.autograd.Function):  # type: ignore[misc]
    """Attention block by block: a prompt causally to itself, a response to its whole prompt and causally to itself."""

    @staticmethod
    def forward(  # noqa: PLR0917 (torch gives them by position)
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        """Compute the output [1, heads, n, d]."""
        out = torch.empty_like(query)
        total = query.new_empty(query.shape[:-1])

        def block(queries: slice, keys: slice, *, causal: bool) -> tuple[Tensor, Tensor]:
            part = _forward(
                query[:, :, queries], key[:, :, keys], value[:, :, keys], 0.0, causal, scale=scale
            )
            return part[0], part[1]

        for group in layout:
            prompt, answers = group.prompt_slice, group.answers_slice
            if group.prompt:
                out[:, :, prompt], total[:, :, prompt] = block(prompt, prompt, causal=True)
            for own in group.response_slices():
                out[:, :, own], total[:, :, own] = block(own, own, causal=True)
            if group.prompt and answers.stop > answers.start:
                seen, seen_sum = block(answers, prompt, causal=False)
                own_sum = total[:, :, answers].clone()
                both = torch.logaddexp(own_sum, seen_sum)
                total[:, :, answers] = both
                shares = torch.exp(own_sum - both).unsqueeze(-1), torch.exp(seen_sum - both).unsqueeze(-1)
                out[:, :, answers] = out[:, :, answers] * shares[0] + seen * shares[1]
        ctx.save_for_backward(query, key, value, out, total)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Compute the gradients block by block, each from the saved output and log-sum of the whole row."""
        query, key, value, out, total = ctx.saved_tensors
        found = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)

        def block(queries: slice, keys: slice, *, causal: bool) -> None:
            parts = _backward(
                grad[:, :, queries],
                query[:, :, queries],
                key[:, :, keys],
                value[:, :, keys],
                out[:, :, queries],
                total[:, :, queries],
                0.0,
                causal,
                scale=ctx.scale,
            )
            for whole, part, where in zip(found, parts, (queries, keys, keys), strict=True):
                whole[:, :, where] += part

        for group in ctx.layout:
            prompt, answers = group.prompt_slice, group.answers_slice
            if group.prompt:
                block(prompt, prompt, causal=True)
            for own in group.response_slices():
                block(own, own, causal=True)
            if group.prompt and answers.stop > answers.start:
                block(answers, prompt, causal=False)
        return *found, None, None


# ------------------------------------------------------------------------------------------ short groups, on a CPU


@dataclass(frozen=True, slots=True)
class _Filled:
    """The groups of a layout, one a row, filled up to the longest.

    Attributes:
        tokens: int64 [groups * width], the token in each place; what fills a row is any token.
        found: int64 [n], the place of each token.
        seen: bool [groups, 1, width, width], what a place attends to.
    """

    tokens: Tensor
    found: Tensor
    seen: Tensor


def are_short(layout: Layout) -> bool:
    """Whether this is faster than block by block."""
    return max(group.prompt + sum(group.responses) for group in layout) <= LONGEST_SHORT


def attend_filled(query: Tensor, key: Tensor, value: Tensor, layout: Layout, *, scale: float) -> Tensor:
    """Compute the attention [1, heads, n, d] of all groups at once, each filled up to the longest.

    Block by block, a group of G responses takes G + 2 kernels forward and as many backward, whose fixed cost is far
    above that of the few tokens that they compute. One kernel with a mask computes what the mask leaves out, too, so
    that it is slower where groups are long.
    """
    rows = _filled(layout)
    count, _, width, _ = rows.seen.shape

    def filled(packed: Tensor) -> Tensor:
        """[1, heads, n, d] → [groups, heads, width, d]."""
        return packed[0].index_select(1, rows.tokens).unflatten(1, (count, width)).transpose(0, 1)

    out = scaled_dot_product_attention(
        filled(query),
        filled(key),
        filled(value),
        attn_mask=rows.seen,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(0, 1).flatten(1, 2).index_select(1, rows.found)[None]


@lru_cache(maxsize=8)  # all layers of a forward share it
def _filled(layout: Layout) -> _Filled:
    groups, responses, _ = (tensor.numpy() for tensor in places(layout))
    starts = np.array([group.start for group in layout])
    column = np.arange(len(groups)) - starts[groups]
    count, width = len(layout), int(column.max()) + 1
    found = groups * width + column
    tokens = np.zeros(count * width, np.int64)
    tokens[found] = np.arange(len(groups))
    response = np.full((count, width), -1)
    response[groups, column] = responses
    related = (response[:, :, None] == response[:, None, :]) | (response[:, None, :] == 0)
    # Also what fills a row attends to something: attention to nothing is not a number, and would spread.
    seen = related & np.tri(width, dtype=bool)
    return _Filled(torch.from_numpy(tokens), torch.from_numpy(found), torch.from_numpy(seen)[:, None])


# ------------------------------------------------------------------------------------------ any scores


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Compute soft-capped or sliding-window attention [1, heads, n, d]; holds all scores of a block in memory."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)

    def attention(
        queries: slice, blocks: Sequence[slice], positions: Tensor, seen: Sequence[Tensor]
    ) -> Tensor:
        scores = torch.cat([query[:, :, queries] @ key[:, :, b].mT for b in blocks], -1) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = positions[:, None] - torch.cat(list(seen))
        allowed = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1, dtype=wide).to(query.dtype)
        return weights @ torch.cat([value[:, :, b] for b in blocks], -2)

    pieces = []
    for group in layout:
        prompt = group.prompt_slice
        at = torch.arange(group.longest, device=query.device)
        before = at[: group.prompt]
        if group.prompt:
            pieces.append(attention(prompt, [prompt], before, [before]))
        for own in group.response_slices():
            places = at[group.prompt : group.prompt + own.stop - own.start]
            pieces.append(attention(own, [prompt, own], places, [before, places]))
    return torch.cat(pieces, 2)
