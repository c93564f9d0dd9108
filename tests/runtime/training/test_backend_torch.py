"""The torch backend on real tiny models: the gradient, the optimizer, weights in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rljob_contract.samples import VOCABULARY, job_config, random_samples, sample, segment
from rljob_contract.tiny_models import tiny_model
from rljob_core.advantage import group_advantages
from rljob_core.errors import JobFailed, NotFinite, SpecError, WeightsRejected
from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_core.trajectory import Source
from rljob_runtime.training.backends.emulated import EmulatedBackend
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.options import TorchBackendOptions
from rljob_runtime.training.packing.rows import batches, row, share
from rljob_runtime.training.registry import check_backend, create_backend


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def backend(model: Path, *, options: dict[str, Any] | None = None, **fields: Any) -> TorchBackend:
    trainer = {"options": {"threads": 1, **(options or {})}, "microBatchTokens": 64}
    config = job_config(model, trainer=trainer, **fields)
    made = create_backend(config, rank=0, world_size=1, model_path=model)
    assert isinstance(made, TorchBackend)
    return made


def feed(trainer: TorchBackend, micro_batches: Sequence[Sequence[TrainingSample]], *, step: int = 0) -> None:
    trainer.begin_step(step)
    for micro_batch in micro_batches:
        trainer.accumulate(micro_batch)


def gradient(trainer: TorchBackend, *micro_batches: Sequence[TrainingSample]) -> dict[str, Tensor]:
    """The step's gradient, before it is clipped."""
    feed(trainer, micro_batches)
    trainer.normalise()
    return {name: g.clone() for name, g in trainer.gradients().items()}


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest ‖Δ‖/‖g‖ over all tensors."""
    assert found.keys() == expected.keys()
    assert all(float(g.norm()) > 0 for g in expected.values())
    return max(float((found[n] - g).norm() / g.norm()) for n, g in expected.items())


def weights(trainer: TorchBackend) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.tensors()}


# ---- the gradient


@pytest.mark.parametrize("packing", ["SharedPrompt", "Padded"])
@pytest.mark.parametrize("loss", ["GRPO", "DrGRPO", "DAPO"])
def test_gradient_is_that_of_the_textbook_loss_one_sequence_at_a_time(
    model: Path, loss: str, packing: str
) -> None:
    samples = random_samples(14)
    temperature, cap, kl = 0.7, 1.5, 0.05
    trainer = backend(
        model,
        options={"dtype": "float64", "packing": packing},
        algorithm={"loss": loss, "kl": kl, "clip": 0.2, "clipHigh": 0.3, "importanceCap": cap},
        sampling={"temperature": temperature, "maxTokens": 32},
    )
    # One step away from the reference, else the KL has no gradient.
    feed(trainer, [random_samples(8, seed=5)])
    trainer.finish_step()
    found = gradient(trainer, samples)

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    policy.load_state_dict(weights(trainer), strict=False)
    policy.tie_weights()
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    total, tokens_trained = torch.zeros((), dtype=torch.float64), 0
    for each in samples:
        segments = each.trajectory.segments
        tokens = torch.tensor([int(t) for s in segments for t in s.tokens])
        behaviour = [float(x) for s in segments for x in s.logprobs]
        places = [i for i, m in enumerate(m for s in segments for m in s.loss_mask) if m]
        new = torch.log_softmax(policy(tokens[None]).logits[0] / temperature, -1)
        frozen = torch.log_softmax(reference(tokens[None]).logits[0] / temperature, -1).detach()
        losses = []
        for place in places:
            probability = new[place - 1, tokens[place]]  # predicted from the token before
            ratio = math.exp(probability.item() - behaviour[place])
            advantage = each.item.advantage
            out = (advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)
            gap = frozen[place - 1, tokens[place]] - probability
            push = 0.0 if out else advantage * min(ratio, cap)
            losses.append(-push * probability + kl * (torch.exp(gap) - gap - 1))
        summed = torch.stack(losses).sum()
        total = total + (summed / len(places) if loss == "GRPO" else summed)
        tokens_trained += len(places)
    total = total / {"GRPO": 14, "DrGRPO": 14 * 32, "DAPO": tokens_trained}[loss]
    total.backward()
    expected = {n: p.grad for n, p in policy.named_parameters()}
    # Run plainly, the model's norms round to float32.
    assert relative_error(found, expected) < 1e-6


def split(samples: list[TrainingSample], sizes: Sequence[int], seed: int) -> list[list[TrainingSample]]:
    shuffled = [samples[i] for i in np.random.default_rng(seed).permutation(len(samples))]
    ends = np.cumsum(sizes)
    assert ends[-1] == len(samples)
    return [shuffled[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("loss", ["GRPO", "DrGRPO", "DAPO"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float64", 1e-10)])
def test_streaming_gives_the_gradient_of_the_whole_batch(
    model: Path, loss: str, dtype: str, bound: float
) -> None:
    samples = random_samples(32, seed=2)
    algorithm = {"loss": loss, "kl": 0.02}
    trainer = backend(model, options={"dtype": dtype}, algorithm=algorithm)
    feed(trainer, [random_samples(8, seed=5)])
    trainer.finish_step()
    whole = gradient(trainer, samples)
    for seed, sizes in enumerate([(8, 8, 8, 8), (1, 20, 3, 8), (0, 31, 1), (1,) * 32]):
        streamed = gradient(trainer, *split(samples, sizes, seed))
        assert relative_error(streamed, whole) <= bound


def test_streaming_takes_the_same_step(model: Path) -> None:
    samples = random_samples(16, seed=3)
    results = []
    for micro_batches in ([samples], split(samples, (5, 11), 0)):
        trainer = backend(model, options={"dtype": "float64"})
        feed(trainer, micro_batches)
        results.append((trainer.finish_step(), weights(trainer)))
    (whole, after_whole), (streamed, after_streamed) = results
    assert relative_error(after_streamed, after_whole) < 1e-8
    assert vars_of(streamed) == pytest.approx(vars_of(whole), rel=1e-9)


def vars_of(stats: StepStats) -> list[float]:
    return [stats.loss, stats.kl, stats.clip_fraction, stats.importance_mean, stats.grad_norm, stats.tokens]


def test_forwards_of_any_size_give_the_same_gradient(model: Path) -> None:
    samples = random_samples(16, seed=4)
    found = [
        gradient(backend(model, options={"dtype": "float64", "forwardTokens": size}), samples)
        for size in (1, 40, 100_000)
    ]
    assert relative_error(found[1], found[0]) < 1e-10
    assert relative_error(found[2], found[0]) < 1e-10


@pytest.mark.parametrize("architecture", ["gemma2", "llama", "qwen3"])
def test_padding_is_not_seen(tmp_path: Path, architecture: str) -> None:
    """Each sequence alone, against all of them padded to the longest; with sliding windows too."""
    model = tiny_model(tmp_path / "model", architecture=architecture)
    samples = random_samples(8, seed=6)
    one = gradient(backend(model, options={"dtype": "float64"}), *[[s] for s in samples])
    padded = gradient(backend(model, options={"dtype": "float64", "forwardTokens": 10_000}), samples)
    assert relative_error(padded, one) < 1e-10


@pytest.mark.parametrize("architecture", ["gemma", "gemma2", "gemma3_text", "llama", "qwen2", "qwen3"])
def test_packed_groups_of_any_shape_have_the_gradient_of_single_sequences(
    tmp_path: Path, architecture: str
) -> None:
    """Empty responses, such as end with what is not trained on, prompts of one token, and groups of one."""
    model = tiny_model(tmp_path / "model", architecture=architecture)

    def group(name: str, prompt: list[int], *responses: list[int], tail: int = 0) -> list[TrainingSample]:
        begin, end = segment(Source.PROMPT, prompt), segment(Source.ENVIRONMENT, [3] * tail)
        made = [
            [begin, segment(Source.MODEL, r, logprobs=[-4.0] * len(r)), *([end] if tail else [])]
            for r in responses
        ]
        return [
            sample(f"{name}.{i}", segments, advantage=(-1.0) ** i * (1 + i))
            for i, segments in enumerate(made)
        ]

    samples = [
        *group("g0", [7], [], [5], [4, 9, 11, 2], [8, 8]),
        *group("g1", [6, 1, 2, 9, 4, 4, 2, 5, 1], [3, 1]),
        *group("g2", [9, 2, 2], [12, 6, 1, 30, 2, 4, 4, 8, 9], [1], [], tail=5),
        *group("g3", [2, 3], []),
    ]
    found = {}
    for packing, size in [("Padded", 1), ("SharedPrompt", 10_000), ("SharedPrompt", 12)]:
        options = {"dtype": "float64", "packing": packing, "forwardTokens": size}
        trainer = backend(model, options=options, algorithm={"kl": 0.1})
        found[packing, size] = gradient(trainer, samples), vars_of(trainer.finish_step())
    (expected, stats), *packed = found.values()
    for gradients, others in packed:
        assert relative_error(gradients, expected) < 1e-10
        assert others == pytest.approx(stats, rel=1e-10)


def test_a_sample_without_advantage_counts_in_the_normaliser_and_nowhere_else(model: Path) -> None:
    trainer = backend(model, options={"dtype": "float64"})
    samples = [s for s in random_samples(8) if s.item.advantage]
    silent = sample("g9.0", list(samples[0].trajectory.segments), advantage=0.0)
    alone = gradient(trainer, samples)
    diluted = gradient(trainer, samples, [silent])
    scale = len(samples) / (len(samples) + 1)
    assert relative_error(diluted, {n: g * scale for n, g in alone.items()}) < 1e-12


def test_a_response_without_a_token_to_train_on_is_harmless(model: Path) -> None:
    prompt = segment(Source.PROMPT, [3, 4])
    for samples in ([sample("g0.0", [prompt], advantage=1.0)], []):
        trainer = backend(model)
        before = weights(trainer)
        feed(trainer, [samples])
        stats = trainer.finish_step()
        assert (stats.tokens, stats.grad_norm) == (0, 0.0)
        assert all(torch.equal(before[n], t) for n, t in weights(trainer).items())


def test_stale_tokens_are_weighted_and_clipped_through_the_backend(model: Path) -> None:
    """A response that was much less likely when it was sampled: clip holds a good one, the cap bounds a bad one."""

    def step(advantage: float, behaviour: float, **algorithm: Any) -> tuple[dict[str, Tensor], StepStats]:
        response = segment(Source.MODEL, [7, 8, 9], logprobs=[behaviour] * 3)
        trainer = backend(model, options={"dtype": "float64"}, algorithm=algorithm)
        samples = [sample("g0.0", [segment(Source.PROMPT, [3, 4]), response], advantage=advantage)]
        return gradient(trainer, samples), trainer.finish_step()

    held, stats = step(1.0, -50.0)
    assert all(float(g.norm()) == 0 for g in held.values())
    assert (stats.clip_fraction, stats.importance_mean) == (1.0, 2.0)
    plain, _ = step(-1.0, -50.0, importanceSampling="None")
    capped, stats = step(-1.0, -50.0, importanceCap=3.0)
    assert (stats.clip_fraction, stats.importance_mean) == (0.0, 3.0)
    assert relative_error(capped, {n: 3 * g for n, g in plain.items()}) < 1e-12


# ---- the optimizer


def test_gradients_are_clipped_to_the_global_norm(model: Path) -> None:
    samples = random_samples(8)
    trainer = backend(model, algorithm={"maxGradNorm": 1e-3})
    unclipped = math.sqrt(sum(float(g.square().sum()) for g in gradient(trainer, samples).values()))
    feed(trainer, [samples])
    stats = trainer.finish_step()
    assert stats.grad_norm == pytest.approx(unclipped, rel=1e-5)
    assert unclipped > 1e-3
    left = math.sqrt(sum(float(g.square().sum()) for g in trainer.gradients().values()))
    assert left == pytest.approx(1e-3, rel=1e-3)


def test_learning_rate_warms_up_by_step_number(model: Path) -> None:
    trainer = backend(model, algorithm={"warmupSteps": 4, "learningRate": 0.08})
    rates = []
    for step in (0, 1, 3, 4, 100):
        feed(trainer, [random_samples(4)], step=step)
        rates.append(trainer.finish_step().learning_rate)
    assert rates == pytest.approx([0.02, 0.04, 0.08, 0.08, 0.08])


def test_learning_rate_zero_changes_nothing(model: Path) -> None:
    trainer = backend(model, algorithm={"learningRate": 0.0, "weightDecay": 0.1})
    before = weights(trainer)
    feed(trainer, [random_samples(8)])
    assert trainer.finish_step().grad_norm > 0
    assert all(torch.equal(before[n], t) for n, t in weights(trainer).items())


def test_an_infinite_gradient_stops_the_job_and_spares_the_weights(model: Path) -> None:
    trainer = backend(model)
    before = weights(trainer)
    response = segment(Source.MODEL, [5], logprobs=[0.0])
    feed(trainer, [[sample("g0.0", [segment(Source.PROMPT, [3]), response], advantage=math.inf)]])
    with pytest.raises(JobFailed, match="not finite"):
        trainer.finish_step()
    assert all(torch.equal(before[n], t) for n, t in weights(trainer).items())


@pytest.mark.parametrize("poison", [{"advantage": math.inf}, {"logprobs": [math.nan]}])
def test_the_micro_batch_where_a_loss_ceased_to_be_finite_is_named(
    model: Path, poison: dict[str, Any]
) -> None:
    trainer = backend(model)
    before = weights(trainer)

    def one(*, advantage: float = 1.0, logprobs: Sequence[float] = (0.0,)) -> TrainingSample:
        response = segment(Source.MODEL, [5], logprobs=list(logprobs))
        return sample("g0.0", [segment(Source.PROMPT, [3]), response], advantage=advantage)

    feed(trainer, [[one()], [one()], [one(**poison)], [one()]])
    with pytest.raises(NotFinite, match="the loss") as caught:
        trainer.finish_step()
    assert caught.value.micro_batch == 2
    assert all(torch.equal(before[n], t) for n, t in weights(trainer).items())


def test_figures_of_a_step(model: Path) -> None:
    trainer = backend(model)
    segments = [segment(Source.PROMPT, [3, 4]), segment(Source.MODEL, [5, 6, 7])]
    samples = [sample(f"g0.{v}", segments, advantage=1.0, version=v) for v in (3, 5, 7)]
    feed(trainer, [samples], step=7)
    stats = trainer.finish_step()
    assert (stats.tokens, stats.staleness_mean, stats.staleness_max) == (9, 2.0, 4)


def test_it_learns_to_say_what_is_rewarded(model: Path) -> None:
    """Two arms: answers that are the token 7 are rewarded; its probability rises from about 1/50."""
    trainer = backend(model, algorithm={"learningRate": 0.01}, options={"packing": "Padded"})
    random = np.random.default_rng(0)
    probability = 0.0
    first: float | None = None
    for step in range(20):
        policy = trainer._model
        with torch.no_grad():
            logprobs = torch.log_softmax(policy(torch.tensor([[3, 4]])).logits[0, -1], -1).double().numpy()
        probability = math.exp(logprobs[7])
        first = probability if first is None else first
        samples = []
        for group in range(8):
            arms = [7 if random.random() < 0.5 else 9 for _ in range(4)]
            advantages = group_advantages([float(a == 7) for a in arms], scale_by_std=True)
            for sibling, (arm, advantage) in enumerate(zip(arms, advantages, strict=True)):
                response = segment(Source.MODEL, [arm], logprobs=[float(logprobs[arm])], version=step)
                prompt = segment(Source.PROMPT, [3, 4])
                samples.append(
                    sample(f"g{group}.{sibling}", [prompt, response], advantage=advantage, version=step)
                )
        feed(trainer, [samples[:20], samples[20:]], step=step)
        trainer.finish_step()
    assert first is not None
    assert first < 0.1
    assert probability > 0.9


# ---- state


def test_a_restored_state_takes_the_very_same_next_step(model: Path, tmp_path: Path) -> None:
    trainer = backend(model, algorithm={"weightDecay": 0.01})
    for step in range(3):
        feed(trainer, [random_samples(8, seed=step)], step=step)
        trainer.finish_step()
    trainer.save(str(tmp_path))
    saved, random = weights(trainer), trainer.random_state()

    def next_step(one: TorchBackend) -> dict[str, Tensor]:
        feed(one, [random_samples(8, seed=9)], step=3)
        one.finish_step()
        return weights(one)

    expected = next_step(trainer)
    other = backend(model, algorithm={"weightDecay": 0.01})
    torch.rand(3)
    other.load(saved.items())
    other.load_state(str(tmp_path))
    assert other.random_state() == random
    assert all(torch.equal(expected[n], t) for n, t in next_step(other).items())

    fresh = backend(model, algorithm={"weightDecay": 0.01})
    fresh.load(saved.items())
    fresh.load_state(None)
    assert any(not torch.equal(expected[n], t) for n, t in next_step(fresh).items())


def test_settings_come_from_the_specification_and_not_from_the_checkpoint(
    model: Path, tmp_path: Path
) -> None:
    trainer = backend(model, algorithm={"weightDecay": 0.0})
    feed(trainer, [random_samples(8)])
    trainer.finish_step()
    trainer.save(str(tmp_path))
    other = backend(model, algorithm={"weightDecay": 100.0, "learningRate": 1e-3})
    other.load_state(str(tmp_path))
    before = weights(other)
    feed(other, [[]], step=1)
    other.finish_step()
    decayed = [float(t.norm()) / float(before[n].norm()) for n, t in weights(other).items() if "norm" in n]
    assert decayed == pytest.approx([0.9] * len(decayed), abs=0.02)


def test_a_damaged_state_is_named(model: Path, tmp_path: Path) -> None:
    trainer = backend(model)
    with pytest.raises(JobFailed, match=str(tmp_path)):
        trainer.load_state(str(tmp_path))
    trainer.save(str(tmp_path))
    path = tmp_path / "optimizer-00000.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(JobFailed, match=str(tmp_path)):
        trainer.load_state(str(tmp_path))


def test_state_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other", layers=1)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    backend(other).save(str(folder))
    with pytest.raises(JobFailed, match="another model"):
        backend(model).load_state(str(folder))


def test_load_brings_back_weights_and_forgets_gradients(model: Path) -> None:
    trainer = backend(model)
    initial = weights(trainer)
    feed(trainer, [random_samples(8)])
    trainer.finish_step()
    stepped = weights(trainer)
    assert not torch.equal(stepped["model.norm.weight"], initial["model.norm.weight"])
    trainer.accumulate(random_samples(4))
    trainer.load(None)
    assert all(torch.equal(initial[n], t) for n, t in weights(trainer).items())
    trainer.normalise()
    assert all(float(g.norm()) == 0 for g in trainer.gradients().values())
    trainer.load(stepped.items())
    assert all(torch.equal(stepped[n], t) for n, t in weights(trainer).items())


@pytest.mark.parametrize("spoil", ["missing", "unknown", "shape"])
def test_weights_of_another_model_are_refused_and_the_right_ones_taken_after_that(
    model: Path, spoil: str
) -> None:
    trainer = backend(model)
    before = weights(trainer)
    given = {n: torch.zeros_like(t) for n, t in before.items()}
    last = list(given)[-1]
    if spoil == "missing":
        del given[last]
    elif spoil == "unknown":
        given["model.extra"] = torch.zeros(1)
    else:
        given[last] = torch.zeros(3, 3, 3)
    with pytest.raises(WeightsRejected, match="model.extra" if spoil == "unknown" else last):
        trainer.load(given.items())
    trainer.load(before.items())
    assert all(torch.equal(before[n], t) for n, t in weights(trainer).items())


@pytest.mark.parametrize("tied", [False, True])
def test_published_weights_make_the_model_again(model: Path, tmp_path: Path, tied: bool) -> None:
    source = AutoModelForCausalLM.from_pretrained(model)
    source.config.tie_word_embeddings = tied
    source.tie_weights()
    source.save_pretrained(tmp_path)
    trainer = backend(tmp_path, options={"packing": "Padded"})  # its model reads what is not packed, below
    feed(trainer, [random_samples(8)])
    trainer.finish_step()
    published = weights(trainer)
    assert ("lm_head.weight" in published) is not tied

    receiver = AutoModelForCausalLM.from_pretrained(tmp_path)
    receiver.load_state_dict(published, strict=False)
    with torch.no_grad():
        tokens = torch.tensor([[3, 4, 5]])
        expected = trainer._model(tokens).logits
        torch.testing.assert_close(receiver(tokens).logits, expected, rtol=0, atol=0)
    other = backend(tmp_path)
    other.load(published.items())
    assert all(torch.equal(published[n], t) for n, t in weights(other).items())


def test_a_folder_without_a_causal_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(SpecError, match=r"spec\.model\.uri"):
        backend(tmp_path)


# ---- packing


def test_rows_join_segments_and_end_with_the_last_trained_token() -> None:
    joined = row(
        sample(
            "g0.0",
            [
                segment(Source.PROMPT, [1, 2]),
                segment(Source.MODEL, [3, 4], logprobs=[-1.0, -2.0]),
                segment(Source.ENVIRONMENT, [5]),
                segment(Source.MODEL, [6], logprobs=[-3.0]),
                segment(Source.ENVIRONMENT, [7, 8]),
            ],
            advantage=0.5,
        )
    )
    assert joined.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert joined.mask.tolist() == [False, False, True, True, False, True]
    assert joined.behaviour[joined.mask].tolist() == [-1.0, -2.0, -3.0]
    assert (joined.advantage, joined.trained) == (0.5, 3)


def test_the_first_token_has_nothing_to_be_predicted_from() -> None:
    joined = row(sample("g0.0", [segment(Source.MODEL, [3, 4])], advantage=1.0))
    assert joined.mask.tolist() == [False, True]
    assert joined.trained == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_shares_are_disjoint_complete_and_balanced(world_size: int) -> None:
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 100, 40)]
    shares = [share(lengths, rank=r, world_size=world_size) for r in range(world_size)]
    assert sorted(i for s in shares for i in s) == list(range(40))
    loads = [sum(lengths[i] for i in s) for s in shares]
    assert max(loads) - min(loads) <= max(lengths)
    assert share([5], rank=1, world_size=2) == []


def test_batches_hold_similar_lengths_within_the_bound() -> None:
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 200, 60)]
    found = batches(lengths, tokens=150)
    assert sorted(i for b in found for i in b) == list(range(60))
    for batch in found:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= 150
    tops = [max(lengths[i] for i in b) for b in found]
    bottoms = [min(lengths[i] for i in b) for b in found]
    assert all(low >= high for low, high in zip(bottoms, tops[1:], strict=False))


def test_batches_compute_least() -> None:
    def cost(parts: Sequence[Sequence[int]]) -> int:
        return sum(max(part) * len(part) + 1024 for part in parts)

    for seed in range(20):
        lengths = sorted(map(int, np.random.default_rng(seed).integers(1, 3000, 9)), reverse=True)
        found = [[lengths[i] for i in batch] for batch in batches(lengths, tokens=6000)]
        ways = []
        for cuts in range(1 << 8):  # after which rows a batch ends
            ends = [i + 1 for i in range(8) if cuts >> i & 1]
            parts = [lengths[a:b] for a, b in pairwise([0, *ends, 9])]
            if all(max(part) * len(part) <= 6000 for part in parts):
                ways.append(cost(parts))
        assert cost(found) == min(ways)


# ---- by name


@pytest.mark.parametrize(
    ("trainer", "path"),
    [
        ({"backend": "Megatron"}, "spec.trainer.backend"),
        ({"options": {"threads": "two"}}, "spec.trainer.options.threads"),
        ({"options": {"speed": 1}}, "spec.trainer.options.speed"),
        ({"backend": "Emulated", "options": {"stepSeconds": -1}}, "spec.trainer.options.stepSeconds"),
    ],
)
def test_wrong_names_and_options_are_refused(trainer: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_backend(job_config(Path("model"), trainer=trainer).spec)
    assert caught.value.path == path


def test_options_are_read() -> None:
    config = job_config(Path("model"), trainer={"options": {"threads": 2, "forwardTokens": 7}})
    assert check_backend(config.spec) == TorchBackendOptions(threads=2, forward_tokens=7)


def emulated(sleep: Callable[[float], None], *, world_size: int = 1, **options: float) -> Any:
    config = job_config(Path("none"), trainer={"backend": "Emulated", "options": options})
    return EmulatedBackend(check_backend(config.spec), world_size=world_size, sleep=sleep)


def test_emulated_training_takes_its_time_and_counts_steps(tmp_path: Path) -> None:
    slept: list[float] = []
    trainer = emulated(
        slept.append, world_size=2, stepSeconds=3.0, secondsPerTrajectory=0.5, secondsPerToken=0.01
    )
    segments = [segment(Source.PROMPT, [1] * 10), segment(Source.MODEL, [1] * 40)]
    trainer.begin_step(5)
    trainer.accumulate([sample("g0.0", segments, advantage=0.0, version=4)])
    trainer.accumulate([])
    stats = trainer.finish_step()
    assert slept == pytest.approx([0.5 * (0.5 + 0.5), 3.0])
    assert (stats.tokens, stats.staleness_max) == (50, 1)
    ((name, tensor),) = trainer.tensors()
    assert tensor.tolist() == [1.0] * 4

    trainer.save(str(tmp_path))
    other = emulated(slept.append)
    other.load([(name, torch.from_numpy(tensor))])
    assert other.random_state() != trainer.random_state()
    other.load_state(str(tmp_path))
    assert other.random_state() == trainer.random_state()
    assert next(other.tensors())[1].tolist() == tensor.tolist()
    other.load(None)
    assert next(other.tensors())[1].tolist() == [0.0] * 4
    with pytest.raises(WeightsRejected):
        other.load([("model.embed", torch.zeros(4))])


def test_the_vocabulary_of_the_samples_is_the_models(model: Path) -> None:
    assert AutoModelForCausalLM.from_pretrained(model).config.vocab_size >= VOCABULARY
