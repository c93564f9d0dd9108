"""Packed groups against the same sequences one at a time, through the architecture's own attention."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.devices import DEVICES, needs_gpu
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError
from rljob_runtime.training.forward import InFloat64, log_probabilities, token_log_probabilities
from rljob_runtime.training.losses.clipped import GSPO
from rljob_runtime.training.losses.loss import LossSettings
from rljob_runtime.training.losses.sums import loss_sums
from rljob_runtime.training.packing import attention as packed_attention
from rljob_runtime.training.packing import flex
from rljob_runtime.training.packing.attention import EXACT, NAME, attend, supports_shared_prompts
from rljob_runtime.training.packing.layout import PackedGroup, places
from rljob_runtime.training.packing.rows import Row
from rljob_runtime.training.packing.shared import PADDED, SHARED_PROMPT, choose_packing, pack, split

ARCHITECTURES = sorted(EXACT)
SETTINGS = LossSettings(clip_low=0.2, clip_high=0.3, importance_cap=2.0, kl=0.0)
VOCABULARY = 50
Result = tuple[float, dict[str, Tensor]]


def rows(spec: list[tuple[int, list[int]]], *, seed: int = 0) -> list[Row]:
    """Groups of (prompt tokens, response tokens of each); one of 3 or more has a token not trained on."""
    random = np.random.default_rng(seed)
    made = []
    for prompt, responses in spec:
        head = random.integers(1, VOCABULARY, prompt)
        for length in responses:
            tokens = np.concatenate([head, random.integers(1, VOCABULARY, length)]).astype(np.int32)
            mask = np.arange(len(tokens)) >= prompt
            mask[0] = False
            if length >= 3:
                mask[prompt + 1] = False
            behaviour = (-np.log(VOCABULARY) + random.normal(0, 0.4, len(tokens))).astype(np.float32)
            made.append(Row(tokens, mask, behaviour, float(random.normal()), int(mask.sum()), prompt))
    return made


GROUPS = [
    (7, [5, 1, 9, 3]),  # a response of one token is predicted by the prompt alone
    (1, [4, 2]),  # a prompt of one token
    (12, [6]),  # a group of one
    (9, [11, 11, 2, 1, 8, 4, 3, 30]),
]
#: For a GPU, where attention is computed in blocks of 128: some groups begin, end or have a response across them.
LONG = [*GROUPS, (150, [61, 1, 97, 40]), (1, [130, 3]), (127, [5, 2])]


def unpacked(model: Any, made: list[Row], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities of all trained tokens, and which row each is of."""
    found, owners = [], []
    for index, row in enumerate(made):
        tokens = torch.from_numpy(row.tokens).long()
        logits = model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
        trained = torch.from_numpy(np.flatnonzero(row.mask))
        found.append(token_log_probabilities(logits[trained - 1], tokens[trained], temperature=0.7))
        owners += [index] * len(trained)
    return torch.cat(found).to(dtype), torch.tensor(owners)


def loss_of(log_probabilities: Tensor, made: list[Row], owners: Tensor) -> Tensor:
    behaviour = np.concatenate([row.behaviour[row.mask] for row in made])
    return loss_sums(
        log_probabilities,
        behaviour=torch.from_numpy(behaviour).to(log_probabilities),
        advantages=torch.tensor([row.advantage for row in made], dtype=torch.float64).to(log_probabilities)[
            owners
        ],
        weights=torch.tensor([1 / row.trained for row in made], dtype=torch.float64).to(log_probabilities)[
            owners
        ],
        sequences=owners,
        loss=GSPO,
        settings=SETTINGS,
    ).loss


def exact(dtype: torch.dtype) -> AbstractContextManager[Any]:
    return InFloat64() if dtype is torch.float64 else nullcontext()


def gradients(model: Any) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """Models by architecture, and what is packed into two sequences of `tokens`, on a device."""

    device: torch.device
    models: dict[str, Path]
    rows: list[Row]
    tokens: int


@pytest.fixture(scope="module", params=DEVICES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    on_gpu = request.param == "cuda"  # FlexAttention has kernels for heads of 16 or more
    models = {
        name: tiny_model(
            tmp_path_factory.mktemp(name), architecture=name, spread=0.1, hidden=64 if on_gpu else 32
        )
        for name in ARCHITECTURES
    }
    return Case(torch.device(request.param), models, rows(LONG if on_gpu else GROUPS), 500 if on_gpu else 80)


def load(path: Path, dtype: torch.dtype, attention: str) -> Any:
    # Gemma 2 caps its scores, which transformers' own fused attention passes over.
    own = "eager" if "gemma2" in path.name else "sdpa"
    chosen = own if attention == "own" else attention
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=chosen).eval()


def unpacked_gradients(path: Path, made: list[Row], dtype: torch.dtype, *, wide: bool = False) -> Result:
    """Loss and gradients of one sequence at a time; `wide` computes in float32 with the weights as `dtype` has them."""
    model = load(path, dtype, "own")
    if wide:
        model, dtype = model.float(), torch.float32
    with exact(dtype):
        log_probabilities, owners = unpacked(model, made, torch.promote_types(dtype, torch.float32))
        loss = loss_of(log_probabilities, made, owners)
    loss.backward()
    return loss.item(), gradients(model)


def packed_gradients(path: Path, case: Case, dtype: torch.dtype) -> Result:
    """Loss and gradients of two packed sequences, of several groups each."""
    model = load(path, dtype, NAME).to(case.device)
    assert supports_shared_prompts(model)
    packs = split(case.rows, tokens=case.tokens, best=case.tokens, rank=0, world_size=1)
    assert len(packs) == 2
    total, wide = 0.0, torch.promote_types(dtype, torch.float32)
    for each in packs:
        batch = pack(each, weight=lambda n: 1 / n, dtype=wide, device=case.device)
        columns = batch.columns
        loss = loss_sums(
            log_probabilities(model, batch, temperature=0.7, dtype=dtype),
            behaviour=columns.behaviour,
            advantages=columns.advantages,
            weights=columns.weights,
            sequences=columns.sequences,
            loss=GSPO,
            settings=SETTINGS,
        ).loss
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def errors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """‖Δ‖/‖g‖ of each tensor."""
    assert found.keys() == expected.keys()
    return {
        n: float((found[n].cpu().double() - g.double()).norm() / g.double().norm())
        for n, g in expected.items()
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_loss_and_every_gradient_are_those_of_the_unpacked_sequences(
    case: Case, architecture: str, dtype: torch.dtype, bound: float
) -> None:
    path = case.models[architecture]
    expected_loss, expected = unpacked_gradients(path, case.rows, dtype)
    loss, found = packed_gradients(path, case, dtype)
    assert abs(loss - expected_loss) <= bound * abs(expected_loss)
    assert max(errors(found, expected).values()) <= bound


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_in_bfloat16_packing_adds_nothing_to_what_rounding_does(case: Case, architecture: str) -> None:
    # Rounding alone moves a tensor's gradient by 1 % to 5 % here: both are compared with the same weights in float32.
    path = case.models[architecture]
    _, exact_gradients = unpacked_gradients(path, case.rows, torch.bfloat16, wide=True)
    _, expected = unpacked_gradients(path, case.rows, torch.bfloat16)
    _, found = packed_gradients(path, case, torch.bfloat16)
    rounding, mine = errors(expected, exact_gradients), errors(found, exact_gradients)
    assert all(error <= max(2e-2, 2 * rounding[name]) for name, error in mine.items()), (mine, rounding)


# ------------------------------------------------------------------------------------------ on a GPU

LAYOUT = (
    PackedGroup(0, 7, (4, 0, 8)),
    PackedGroup(19, 0, (5,)),
    PackedGroup(24, 1, (0, 3)),
    PackedGroup(28, 9, ()),
)


def tensors(
    *, heads: int = 4, key_heads: int = 2, size: int = 37, head: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, size, head, generator=random)
    return query, *(torch.randn(1, key_heads, size, head, generator=random) for _ in range(2))


@pytest.mark.parametrize("window", [None, 5])
def test_flex_attention_with_the_block_mask_is_the_same(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # FlexAttention's backward needs a GPU; its forward, and with it the mask, does not.
    query, key, value = tensors()
    found, _ = attend(None, query, key, value, None, sliding_window=window, shared_prompts=LAYOUT)
    monkeypatch.setattr(flex, "_compiled", lambda: flex._in_blocks)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is not compiled
        expected = flex.flex(query, key, value, LAYOUT, scale=0.25, window=window)
    torch.testing.assert_close(found, expected.transpose(1, 2))


BLOCKS = (PackedGroup(0, 300, (4, 0, 129, 77)), PackedGroup(510, 1, (200, 63)), PackedGroup(774, 128, (9,)))


@needs_gpu
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(
    ("dtype", "size", "bound"),
    [
        *((torch.float32, size, 1e-5) for size in (8, 16, 64, 96, 128, 256)),
        *((torch.bfloat16, size, 1e-2) for size in (8, 16, 64, 96, 128, 256)),
        (torch.float64, 64, 1e-12),
    ],
)
def test_attention_on_a_gpu_is_that_of_the_cpu(
    dtype: torch.dtype, size: int, bound: float, window: int | None, softcap: float | None
) -> None:
    given = [t.to(dtype) for t in tensors(size=911, head=size)]

    def results(device: str, dtype: torch.dtype) -> list[Tensor]:
        query, key, value = (t.to(device, dtype).requires_grad_() for t in given)
        out, _ = attend(
            None, query, key, value, None, sliding_window=window, softcap=softcap, shared_prompts=BLOCKS
        )
        out.backward(torch.cos(torch.arange(out.numel(), device=device)).view_as(out).to(dtype))
        return [t.detach().cpu().double() for t in (out, query.grad, key.grad, value.grad)]

    for found, expected in zip(results("cuda", dtype), results("cpu", torch.float64), strict=True):
        assert float((found - expected).norm() / expected.norm()) <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_short_groups_are_computed_together_as_block_by_block(
    dtype: torch.dtype, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of several sizes, without a prompt, without a response, and with an empty one."""
    layout = (PackedGroup(0, 5, (3, 0, 2)), PackedGroup(10, 0, (4,)), PackedGroup(14, 6, ()))
    random = torch.Generator().manual_seed(1)
    shapes = [(1, heads, 20, 8) for heads in (4, key_heads, key_heads)]
    given = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]
    weight = torch.randn((1, 20, 4, 8), generator=random, dtype=torch.float64).to(dtype)
    found = []
    for longest in (packed_attention.LONGEST_SHORT, 0):
        monkeypatch.setattr(packed_attention, "LONGEST_SHORT", longest)
        assert packed_attention.are_short(layout) == (longest > 0)
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        out, _ = attend(torch.nn.Identity(), *leaves, None, shared_prompts=layout)
        (out * weight).sum().backward()
        found.append([out.detach(), *(leaf.grad for leaf in leaves)])
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for together, block_by_block in zip(*found, strict=True):
        torch.testing.assert_close(together, block_by_block, rtol=tolerance, atol=tolerance)


def test_places_of_tokens() -> None:
    groups, responses, positions = places(LAYOUT[1:3])
    assert groups.tolist() == [0] * 5 + [1] * 4
    assert responses.tolist() == [1] * 5 + [0, 2, 2, 2]
    assert positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [{"shared_prompts": None}, {"dropout": 0.1}, {"s_aux": torch.zeros(4)}],
    ids=lambda w: next(iter(w)),
)
def test_what_it_cannot_do_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        attend(None, *tensors(), None, **{"shared_prompts": LAYOUT, **wrong})


# ------------------------------------------------------------------------------------------ who computes what

MADE = [(5, [3, 4, 50, 7]), (9, [1, 2]), (5, [6]), (0, [4, 9])]


@pytest.mark.parametrize("world_size", [1, 2, 3, 9, 20])
@pytest.mark.parametrize(
    "kinds", [MADE, [(5, [1] * 8)], [(7, [9, 8, 7, 6, 5, 4, 1, 1])]], ids=["any", "of one", "some"]
)
def test_ranks_share_all_rows_and_keep_siblings_together_where_they_can(
    kinds: list[tuple[int, list[int]]], world_size: int
) -> None:
    made = rows(kinds)
    shares = [split(made, tokens=40, best=40, rank=rank, world_size=world_size) for rank in range(world_size)]
    found = [row for share in shares for sequence in share for row in sequence]
    assert sorted(map(id, found)) == sorted(map(id, made))
    assert sum(1 for share in shares if share) == min(world_size, len(made))
    for sequence in (sequence for share in shares for sequence in share):
        layout = pack(sequence, weight=float, dtype=torch.float32, device=torch.device("cpu")).layout
        last = layout[-1]
        assert last.answers_slice.stop <= 40 or len(sequence) == 1


def test_a_sequence_has_each_prompt_once_and_each_token_trained_on() -> None:
    made = rows(MADE)
    (sequence,) = split(made, tokens=1000, best=1000, rank=0, world_size=1)
    batch = pack(sequence, weight=float, dtype=torch.float32, device=torch.device("cpu"))
    assert sorted(group.prompt for group in batch.layout) == [0, 5, 5, 9]
    assert batch.inputs.shape[1] == sum(p + sum(r) - len(r) for p, r in MADE)
    trained = [int(token) for row in sequence for token in row.tokens[row.mask]]
    assert batch.columns.targets.tolist() == trained
    assert batch.columns.weights.tolist() == [row.trained for row in sequence for _ in range(row.trained)]


def test_what_an_architecture_allows_is_chosen(tmp_path: Path) -> None:
    qwen = load(tiny_model(tmp_path), torch.float32, "own")
    assert choose_packing("Padded", qwen) is PADDED
    assert choose_packing(None, qwen) is SHARED_PROMPT
    assert qwen.config._attn_implementation == NAME
    config = AutoConfig.for_model("mamba", vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)
    other = AutoModelForCausalLM.from_config(config)
    assert choose_packing(None, other) is PADDED
    with pytest.raises(SpecError, match="write Padded") as refused:
        choose_packing("SharedPrompt", other)
    assert refused.value.path == "spec.trainer.options.packing"


SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def made_of(architecture: str, **more: Any) -> Any:
    config = AutoConfig.for_model(architecture, **SIZES, **more, pad_token_id=0)
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("recurrent_gemma", {"lru_width": 16, "attention_window_size": 8}),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}),
    ],
)
def test_layers_that_are_no_attention_and_sinks_are_refused(architecture: str, more: dict[str, Any]) -> None:
    """All of these say that their attention can be replaced."""
    model = made_of(architecture, **more)
    assert model._supports_attention_backend
    assert choose_packing(None, model) is PADDED
    with pytest.raises(SpecError, match="write Padded"):
        choose_packing("SharedPrompt", model)


def test_a_model_of_another_type_shares_prompts_where_the_job_says_so() -> None:
    model = made_of("olmo2")
    assert choose_packing(None, model) is PADDED
    assert choose_packing("SharedPrompt", model) is SHARED_PROMPT
    assert model.config._attn_implementation == NAME
