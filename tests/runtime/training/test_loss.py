"""The loss against textbook formulas, written naively, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rljob_core.spec import AlgorithmSpec
from rljob_runtime.training.forward import token_log_probabilities
from rljob_runtime.training.losses.loss import LossSettings, StepTotals
from rljob_runtime.training.losses.registry import find_loss
from rljob_runtime.training.losses.sums import LossSums, loss_sums


def sums_of(new: Tensor, *, loss: str = "GRPO", sequences: Tensor | None = None, **rest: Any) -> LossSums:
    """The loss where each token is a sequence, unless others are given."""
    owners = torch.arange(len(new)) if sequences is None else sequences
    return loss_sums(new, loss=find_loss(loss), sequences=owners, **rest)


def gradient(
    new: Tensor,
    *,
    behaviour: Tensor,
    advantages: Tensor,
    settings: LossSettings,
    loss: str = "GRPO",
    **rest: Tensor,
) -> Tensor:
    """∂loss/∂log π of each token."""
    new = new.clone().requires_grad_()
    weights = rest.pop("weights", torch.ones_like(new))
    sums = sums_of(
        new,
        loss=loss,
        behaviour=behaviour,
        advantages=advantages,
        weights=weights,
        settings=settings,
        reference=rest.get("reference"),
        sequences=rest.get("sequences"),
    )
    (result,) = torch.autograd.grad(sums.loss, new)
    return result


def tokens(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """New and behaviour log-probabilities whose ratios spread over 0.3 … 3, advantages of both signs."""
    random = torch.Generator().manual_seed(seed)
    new = -3 * torch.rand(count, generator=random, dtype=torch.float64) - 0.1
    behaviour = new + 0.5 * torch.randn(count, generator=random, dtype=torch.float64)
    return new, behaviour, torch.randn(count, generator=random, dtype=torch.float64)


def test_fresh_data_gives_the_plain_policy_gradient() -> None:
    new, _, advantages = tokens(100)
    for cap in (None, 2.0):
        settings = LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=cap, kl=0.0)
        found = gradient(new, behaviour=new, advantages=advantages, settings=settings)
        torch.testing.assert_close(found, -advantages, rtol=1e-12, atol=0)


def test_with_a_cap_out_of_reach_it_is_the_clipped_objective_of_ppo() -> None:
    new, behaviour, advantages = tokens(500)
    settings = LossSettings(clip_low=0.2, clip_high=0.3, importance_cap=1e9, kl=0.0)
    found = gradient(new, behaviour=behaviour, advantages=advantages, settings=settings)

    variable = new.clone().requires_grad_()
    ratio = torch.exp(variable - behaviour)
    objective = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.3) * advantages)
    (expected,) = torch.autograd.grad(-objective.sum(), variable)
    assert 50 < int((expected == 0).sum()) < 450  # the clip acts on some tokens
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("ratio", "advantage", "pushed"),
    [
        (1.31, 1.0, False),  # above 1 + clipHigh, and pushed further up
        (1.29, 1.0, True),
        (0.79, -1.0, False),  # below 1 − clip, and pushed further down
        (0.81, -1.0, True),
        (5.0, -1.0, True),  # pushed back towards 1
        (0.1, 1.0, True),
    ],
)
@pytest.mark.parametrize("cap", [None, 2.0])
def test_clip_stops_a_token_only_where_it_is_pushed_further_out(
    ratio: float, advantage: float, pushed: bool, cap: float | None
) -> None:
    settings = LossSettings(clip_low=0.2, clip_high=0.3, importance_cap=cap, kl=0.0)
    new = torch.tensor([-1.0], dtype=torch.float64)
    behaviour, advantages = new - math.log(ratio), torch.tensor([advantage], dtype=torch.float64)
    found = gradient(new, behaviour=behaviour, advantages=advantages, settings=settings)
    weight = 1.0 if cap is None else min(ratio, cap)
    assert found.item() == pytest.approx(-advantage * weight if pushed else 0.0)
    sums = sums_of(
        new, behaviour=behaviour, advantages=advantages, weights=torch.ones_like(new), settings=settings
    )
    assert sums.statistics.tolist()[2:] == pytest.approx([1.0, 0.0 if pushed else 1.0, weight])


def test_importance_weight_corrects_and_is_truncated() -> None:
    ratios = torch.tensor([0.5, 1.0, 1.1, 3.0], dtype=torch.float64)
    new = torch.full((4,), -1.0, dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    settings = LossSettings(clip_low=0.9, clip_high=9.0, importance_cap=2.0, kl=0.0)
    found = gradient(new, behaviour=new - ratios.log(), advantages=advantages, settings=settings)
    torch.testing.assert_close(found, torch.tensor([-0.5, -1.0, -1.1, 2.0], dtype=torch.float64))


def test_an_infinite_ratio_stays_finite() -> None:
    settings = LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=2.0, kl=0.0)
    new, behaviour = torch.tensor([-0.1, -0.1]), torch.tensor([-500.0, -500.0])
    found = gradient(new, behaviour=behaviour, advantages=torch.tensor([1.0, -1.0]), settings=settings)
    assert found.tolist() == [0.0, 2.0]


def test_the_value_of_the_gradient_is_that_of_finite_differences() -> None:
    """Through the softmax: logits → tempered log-probabilities → PPO's objective with the reference's KL."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 5, generator=random, dtype=torch.float64)
    reference_logits = torch.randn(6, 5, generator=random, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3, 4, 0])
    _, shift, advantages = tokens(6, seed=3)
    settings = LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=1e9, kl=0.3)
    temperature = 0.7

    def log_softmax(row: Tensor, target: int) -> float:
        exponentials = [math.exp(x / temperature) for x in row.tolist()]
        return math.log(exponentials[target] / math.fsum(exponentials))

    behaviour = [log_softmax(logits[i], int(targets[i])) + 0.1 * float(shift[i]) for i in range(6)]

    def naive(values: Tensor) -> float:
        total = 0.0
        for i in range(6):
            new = log_softmax(values[i], int(targets[i]))
            ratio, advantage = math.exp(new - behaviour[i]), float(advantages[i])
            gap = log_softmax(reference_logits[i], int(targets[i])) - new
            clipped = min(max(ratio, 0.8), 1.2)
            total -= min(ratio * advantage, clipped * advantage)
            total += 0.3 * (math.exp(gap) - gap - 1)
        return total

    variable = logits.clone().requires_grad_()
    sums = sums_of(
        token_log_probabilities(variable, targets, temperature=temperature),
        behaviour=torch.tensor(behaviour, dtype=torch.float64),
        advantages=advantages,
        weights=torch.ones(6, dtype=torch.float64),
        settings=settings,
        reference=token_log_probabilities(reference_logits, targets, temperature=temperature),
    )
    (found,) = torch.autograd.grad(sums.loss, variable)
    step = 1e-5
    for i in range(6):
        for j in range(5):
            up, down = logits.clone(), logits.clone()
            up[i, j] += step
            down[i, j] -= step
            assert found[i, j].item() == pytest.approx((naive(up) - naive(down)) / (2 * step), abs=1e-8)


def test_kl_is_nothing_at_the_reference_and_positive_elsewhere() -> None:
    settings = LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=None, kl=1.0)
    new, other, _ = tokens(50)
    nothing = torch.zeros_like(new)
    at = gradient(new, behaviour=new, advantages=nothing, settings=settings, reference=new)
    torch.testing.assert_close(at, nothing)
    for reference in (new - 1, new + 1, other):
        sums = sums_of(
            new,
            behaviour=new,
            advantages=nothing,
            weights=torch.ones_like(new),
            settings=settings,
            reference=reference,
        )
        assert sums.statistics[1] > 0
        assert sums.loss.item() == pytest.approx(sums.statistics[1].item())


def test_half_precision_logits_are_widened() -> None:
    logits = torch.randn(3, 40).to(torch.bfloat16)
    found = token_log_probabilities(logits, torch.tensor([0, 1, 2]), temperature=0.5)
    expected = torch.log_softmax(logits.float() / 0.5, -1)[torch.arange(3), torch.tensor([0, 1, 2])]
    torch.testing.assert_close(found, expected)


def test_the_loss_has_the_value_of_the_clipped_objective() -> None:
    new, behaviour, advantages = tokens(500)
    settings = LossSettings(clip_low=0.2, clip_high=0.3, importance_cap=1e9, kl=0.0)
    found = sums_of(
        new, behaviour=behaviour, advantages=advantages, weights=torch.ones_like(new), settings=settings
    )
    ratio = torch.exp(new - behaviour)
    objective = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.3) * advantages)
    torch.testing.assert_close(found.loss, -objective.sum(), rtol=1e-12, atol=0)
    assert found.statistics[0] == found.loss


def test_gspo_clips_whole_sequences_by_their_geometric_mean_ratio() -> None:
    lengths = torch.tensor([1, 7, 30, 2, 12, 3] * 20)
    new, behaviour, _ = tokens(int(lengths.sum()))
    advantages = torch.randn(len(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    settings = LossSettings(clip_low=0.1, clip_high=0.15, importance_cap=1e9, kl=0.0)

    variable = new.clone().requires_grad_()
    total, clipped = torch.zeros((), dtype=torch.float64), 0
    for index in range(len(lengths)):
        mine = owners == index
        ratio = torch.exp((variable[mine] - behaviour[mine]).mean())
        objective = torch.minimum(ratio * advantages[index], ratio.clamp(0.9, 1.15) * advantages[index])
        total = total - objective
        clipped += int(mine.sum()) * int(objective.item() < (ratio * advantages[index]).item())
    (expected,) = torch.autograd.grad(total, variable)
    arguments: dict[str, Any] = {
        "loss": "GSPO",
        "behaviour": behaviour,
        "advantages": advantages[owners],
        "weights": (1 / lengths.double())[owners],
        "sequences": owners,
        "settings": settings,
    }
    assert 0 < clipped < len(new)
    torch.testing.assert_close(gradient(new, **arguments), expected, rtol=1e-12, atol=1e-15)
    found = sums_of(new, **arguments)
    torch.testing.assert_close(found.loss, total.detach(), rtol=1e-12, atol=0)
    assert found.statistics[3] == clipped


def test_cispo_weights_log_probabilities_by_clipped_ratios_that_have_no_gradient() -> None:
    new, behaviour, advantages = tokens(300)
    settings = LossSettings(clip_low=0.2, clip_high=0.3, importance_cap=None, kl=0.0)
    weights = torch.exp(new - behaviour).clamp(max=1.3)
    found = gradient(new, loss="CISPO", behaviour=behaviour, advantages=advantages, settings=settings)
    torch.testing.assert_close(found, -weights * advantages, rtol=1e-12, atol=0)
    sums = sums_of(
        new,
        loss="CISPO",
        behaviour=behaviour,
        advantages=advantages,
        weights=torch.ones_like(new),
        settings=settings,
    )
    torch.testing.assert_close(sums.loss, -(weights * advantages * new).sum(), rtol=1e-12, atol=0)
    assert sums.statistics[3] == int((weights == 1.3).sum()) > 0


LOSSES = ["GRPO", "DrGRPO", "DAPO", "GSPO", "CISPO"]


@pytest.mark.parametrize("loss", LOSSES)
def test_averages(loss: str) -> None:
    """Two sequences, of 2 and of 4 tokens, with at most 10 tokens each."""
    losses = [[1.0, 3.0], [2.0, 2.0, 2.0, 6.0]]
    average = find_loss(loss).average
    total = sum(average.token_weight(len(s)) * x for s in losses for x in s)
    found = total / average.divisor(StepTotals(sequences=2, tokens=6, max_tokens=10))
    per_sequence, per_token = (4 / 2 + 12 / 4) / 2, 16 / 6
    expected = {"GRPO": per_sequence, "GSPO": per_sequence, "DAPO": per_token, "CISPO": per_token}
    assert found == pytest.approx(expected.get(loss, 16 / (2 * 10)))


def test_an_empty_step_divides_by_one() -> None:
    assert {
        find_loss(x).average.divisor(StepTotals(sequences=0, tokens=0, max_tokens=8)) for x in LOSSES
    } == {1.0}


def test_settings_of_the_specification() -> None:
    plain = LossSettings.of(AlgorithmSpec(clip=0.1))
    assert plain == LossSettings(clip_low=0.1, clip_high=0.1, importance_cap=2.0, kl=0.0)
    other = LossSettings.of(
        AlgorithmSpec(loss="GSPO", clip=0.1, clip_high=0.4, importance_sampling="None", kl=0.01)
    )
    assert other == LossSettings(clip_low=0.1, clip_high=0.4, importance_cap=None, kl=0.01)
