"""The contract of a loss: checks of a `Loss` on random tokens in float64, without a model.

Backends accumulate sums over micro-batches and ranks and divide them once, when the step ends. A loss must allow that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rljob_contract.check import Contract, require
from rljob_runtime.training.losses.loss import Loss, LossSettings, LossTokens, StepTotals, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor

#: Part of a gradient by which two ways to compute it in float64 may differ.
_ROUNDING = 1e-9
#: Central differences with this step have errors of about its square.
_STEP, _DIFFERENCES = 1e-6, 1e-6
_MAX_TOKENS = 40


@dataclass(frozen=True, slots=True)
class LossSubject:
    """One loss with the constants of a job.

    Attributes:
        loss: what is checked.
        settings: as `spec.algorithm` gives them; without the KL term, which backends add to any loss.
    """

    loss: Loss
    settings: LossSettings


@dataclass(frozen=True, slots=True)
class _TrainedTokens:
    """The trained tokens of one trajectory: float64 [n] each."""

    old: Tensor
    behaviour: Tensor
    advantage: float


LOSS = Contract[LossSubject]()


# ---------------------------------------------------------------------------------------------------- the checks


@LOSS.check
def each_token_has_a_finite_loss(subject: LossSubject) -> None:
    """Each token has a finite loss, of its log-probability's dtype.

    The objective returns TokenLosses, whose tensors have the shape of tokens.log_probabilities; clipped is boolean.
    """
    tokens = _batch(_sequences())
    found = subject.loss.objective(tokens, subject.settings)
    require(isinstance(found, TokenLosses), f"the objective returned {type(found).__name__}, not TokenLosses")
    shape = tokens.old.shape
    for name in ("losses", "importance", "clipped"):
        value = getattr(found, name)
        require(
            (value is None and name != "losses") or getattr(value, "shape", None) == shape,
            f"{name} is {_described(value)} for {len(tokens.old)} tokens",
        )
    require(found.losses.dtype == tokens.old.dtype, f"losses of float64 tokens are {found.losses.dtype}")
    require(bool(found.losses.isfinite().all()), "some losses are not finite")


@LOSS.check
def fresh_samples_move_the_policy_along_the_advantage(subject: LossSubject) -> None:
    """A step on fresh samples makes tokens with a positive advantage likelier, and those with a negative less likely.

    Look for a sign: the loss is minimised, so its gradient by a token's log-probability has the sign of -advantage.
    """
    samples = [replace(each, behaviour=each.old) for each in _sequences()]
    gradient = _gradient(subject, samples)
    wrong = (gradient * _batch(samples).advantages > 0).sum()
    require(not wrong, f"the gradients of {int(wrong)} of {len(gradient)} tokens have the wrong sign")
    require(bool((gradient != 0).any()), "all gradients are 0")


@LOSS.check
def the_gradient_is_that_of_the_value(subject: LossSubject) -> None:
    """The gradient is the slope of the value, where `old` stays as it is.

    Compute from tokens.old, instead of detach() or no_grad(), whatever is to have no gradient, such as ratios.
    """
    import torch

    samples = _sequences()
    found = _gradient(subject, samples)
    tokens = _batch(samples)
    slopes = []
    for index in range(len(found)):
        shift = torch.zeros_like(tokens.old)
        shift[index] = _STEP
        high, low = (
            _value(subject, replace(tokens, log_probabilities=tokens.old + sign * shift), samples)
            for sign in (1, -1)
        )
        slopes.append(float(high - low) / (2 * _STEP))
    gap = (found - torch.tensor(slopes, dtype=torch.float64)).abs()
    worst = int(gap.argmax())
    allowed = _DIFFERENCES * max(1.0, float(found.abs().max()))
    require(
        bool(gap.max() <= allowed),
        f"a token's gradient is {float(found[worst]):.7g}, and the slope of the loss {slopes[worst]:.7g}",
    )


@LOSS.check
def an_advantage_of_zero_teaches_nothing(subject: LossSubject) -> None:
    """Tokens whose advantage is 0 have a loss and a gradient of 0.

    Trainer backends leave such trajectories out of the forward, unless there is a KL term: multiply by the advantage.
    """
    samples = [replace(each, advantage=0.0) for each in _sequences()]
    gradient = _gradient(subject, samples)
    require(not gradient.any(), f"{int((gradient != 0).sum())} of {len(gradient)} gradients are not 0")
    value = float(_value(subject, _batch(samples), samples).detach())
    require(value == 0, f"the loss is {value:.7g}")


@LOSS.check
def micro_batches_and_ranks_add_up_to_the_whole_batch(subject: LossSubject) -> None:
    """A step's gradient is the same however whole sequences are cut into micro-batches and shared among ranks.

    A token's loss depends on its own sequence alone; what the step is divided by is said by the average.
    """
    import torch

    samples = _sequences()
    whole = _gradient(subject, samples)
    for cuts in ([1, 4], [3, 3, 7]):
        parts = [samples[start:end] for start, end in zip([0, *cuts], [*cuts, len(samples)], strict=True)]
        found = torch.cat([_gradient(subject, part) for part in parts if part])
        gap, length = float((found - whole).norm()), float(whole.norm())
        require(
            gap <= _ROUNDING * length,
            f"in {len(parts)} parts the gradient differs by {gap / length if length else gap:.1%}",
        )


@LOSS.check
def a_step_is_an_average(subject: LossSubject) -> None:
    """A step over the same samples twice has the same gradient, and a step without samples is divided by 1.

    Divide by a count of the step's sequences or tokens; otherwise the learning rate depends on the batch.
    """
    samples = _sequences()
    once, twice = (_gradient(subject, batch, divided=True) for batch in (samples, [*samples, *samples]))
    both = twice[: len(once)] + twice[len(once) :]
    gap, length = float((both - once).norm()), float(once.norm())
    require(
        gap <= _ROUNDING * length,
        f"from the same samples twice the gradient is {float(both.norm()):.7g} long, from them once {length:.7g}",
    )
    empty = subject.loss.average.divisor(_totals([]))
    require(empty == 1, f"a step without samples is divided by {empty:g}")


@LOSS.check
def no_ratio_makes_the_gradient_infinite(subject: LossSubject) -> None:
    """A token whose ratio is infinite or zero has a finite loss and gradient.

    Bound the ratio from above (clamp) before anything is multiplied by it: with stale samples it may be infinite.
    """
    import torch

    def alike(count: int, value: float) -> Tensor:
        return torch.full((count,), value, dtype=torch.float64)

    for before, now in ((-2000.0, -0.1), (-0.1, -2000.0)):
        for advantage in (1.0, -1.0):
            samples = [_TrainedTokens(alike(n, now), alike(n, before), advantage) for n in (1, 5)]
            gradient = _gradient(subject, samples)
            value = _value(subject, _batch(samples), samples).detach()
            require(
                bool(gradient.isfinite().all()) and bool(value.isfinite()),
                f"with log-probability {now:g} where the engine's was {before:g} and advantage {advantage:g}, the "
                f"loss is {float(value):g} and the largest gradient {float(gradient.abs().max()):g}",
            )


# ---------------------------------------------------------------------------------------------------- the tokens


def _sequences() -> list[_TrainedTokens]:
    """Sequences of 1 to 24 tokens, with advantages of both signs and ratios on both sides of any clip."""
    import torch

    random = torch.Generator().manual_seed(1)

    def drawn(count: int, advantage: float) -> _TrainedTokens:
        old = -3 * torch.rand(count, generator=random, dtype=torch.float64) - 0.1
        # The ratios of each sequence lie around a number of its own, as if some were staler than others.
        stale = 0.4 * torch.randn(1, generator=random, dtype=torch.float64)
        noise = 0.5 * torch.randn(count, generator=random, dtype=torch.float64)
        return _TrainedTokens(old, old + stale + noise, advantage)

    advantages = torch.randn(9, generator=random, dtype=torch.float64).tolist()
    lengths = (5, 1, 24, 3, 11, 2, 7, 16, 4)
    return [drawn(n, advantage) for n, advantage in zip(lengths, advantages, strict=True)]


def _batch(samples: Sequence[_TrainedTokens]) -> LossTokens:
    import torch

    lengths = torch.tensor([len(each.old) for each in samples])
    owners = torch.arange(len(samples)).repeat_interleave(lengths)
    old = torch.cat([each.old for each in samples])
    return LossTokens(
        log_probabilities=old.clone().requires_grad_(),
        old=old,
        behaviour=torch.cat([each.behaviour for each in samples]),
        advantages=torch.tensor([each.advantage for each in samples], dtype=torch.float64)[owners],
        sequences=owners,
    )


def _value(subject: LossSubject, tokens: LossTokens, samples: Sequence[_TrainedTokens]) -> Tensor:
    """The weighted sum of the tokens' losses."""
    import torch

    weights = [subject.loss.average.token_weight(len(each.old)) for each in samples]
    found = subject.loss.objective(tokens, subject.settings).losses
    return (torch.tensor(weights, dtype=torch.float64)[tokens.sequences] * found).sum()


def _gradient(subject: LossSubject, samples: Sequence[_TrainedTokens], *, divided: bool = False) -> Tensor:
    """∂/∂log π of the sum over these sequences, or of the average."""
    import torch

    tokens = _batch(samples)
    value = _value(subject, tokens, samples)
    require(value.requires_grad, "the loss has no graph: compute it from tokens.log_probabilities")
    (found,) = torch.autograd.grad(value, tokens.log_probabilities)
    if divided:
        found = found / subject.loss.average.divisor(_totals(samples))
    return found


def _totals(samples: Sequence[_TrainedTokens]) -> StepTotals:
    tokens = sum(len(each.old) for each in samples)
    return StepTotals(sequences=len(samples), tokens=tokens, max_tokens=_MAX_TOKENS)


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"of the shape {list(shape)}"
