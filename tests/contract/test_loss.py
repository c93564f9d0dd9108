"""What every loss does, and which check finds a loss that does not."""

from __future__ import annotations

import pytest
import torch

from rljob_contract.check import Check, examine_blocking
from rljob_contract.loss import LOSS, LossSubject
from rljob_core.spec import AlgorithmSpec
from rljob_runtime.training import (
    MEAN_OVER_TOKENS,
    Average,
    Loss,
    LossSettings,
    LossTokens,
    TokenLosses,
)
from rljob_runtime.training.losses.clipped import clip_tokens
from rljob_runtime.training.losses.registry import LOSSES, find_loss

BUILT_IN = [name for name, offering in LOSSES.offers().items() if offering == ["rljob itself"]]
SETTINGS = {
    "default": LossSettings.of(AlgorithmSpec()),
    "narrow": LossSettings.of(AlgorithmSpec(clip=3e-4, clip_high=4e-4)),
    "no importance weight": LossSettings.of(AlgorithmSpec(importance_sampling="None")),
}


@pytest.mark.parametrize("check", LOSS, ids=lambda check: check.name)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_contract(check: Check[LossSubject], settings: str, name: str) -> None:
    check.run(LossSubject(find_loss(name), SETTINGS[settings]))


# ------------------------------------------------------------------------------------------------- wrong losses


def scalar(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    return TokenLosses(clip_tokens(tokens, settings).losses.mean())


def narrow(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    return TokenLosses(clip_tokens(tokens, settings).losses.float())


def upside_down(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    return TokenLosses(-clip_tokens(tokens, settings).losses)


def without_graph(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    with torch.no_grad():
        return clip_tokens(tokens, settings)


def detached_by_itself(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    ratio = (tokens.log_probabilities.detach() - tokens.behaviour).exp().clamp(max=2.0)
    return TokenLosses(-tokens.advantages * ratio * tokens.log_probabilities)


def with_a_bonus(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    return TokenLosses(clip_tokens(tokens, settings).losses + 0.01 * tokens.log_probabilities)


def centred_in_the_batch(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    pushed = tokens.ratios().clamp(max=2.0)
    return TokenLosses(-tokens.advantages * (pushed / pushed.mean()) * tokens.log_probabilities)


def unbounded(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    return TokenLosses(-tokens.advantages * tokens.ratios() * tokens.log_probabilities)


SUM = Average(lambda _: 1.0, lambda _: 1)


@pytest.mark.parametrize(
    ("loss", "check", "words"),
    [
        (Loss(scalar, MEAN_OVER_TOKENS), "each-token-has-a-finite-loss", "losses is of the shape"),
        (Loss(narrow, MEAN_OVER_TOKENS), "each-token-has-a-finite-loss", "are torch.float32"),
        (
            Loss(upside_down, MEAN_OVER_TOKENS),
            "fresh-samples-move-the-policy-along-the-advantage",
            "have the wrong sign",
        ),
        (Loss(without_graph, MEAN_OVER_TOKENS), "the-gradient-is-that-of-the-value", "has no graph"),
        (
            Loss(detached_by_itself, MEAN_OVER_TOKENS),
            "the-gradient-is-that-of-the-value",
            "the slope of the loss",
        ),
        (Loss(with_a_bonus, MEAN_OVER_TOKENS), "an-advantage-of-zero-teaches-nothing", "are not 0"),
        (
            Loss(centred_in_the_batch, MEAN_OVER_TOKENS),
            "micro-batches-and-ranks-add-up-to-the-whole-batch",
            "the gradient differs by",
        ),
        (Loss(clip_tokens, SUM), "a-step-is-an-average", "from the same samples twice"),
        (Loss(unbounded, MEAN_OVER_TOKENS), "no-ratio-makes-the-gradient-infinite", "the loss is"),
    ],
)
def test_a_wrong_loss_is_found(loss: Loss, check: str, words: str) -> None:
    subject = LossSubject(loss, SETTINGS["default"])
    findings = {f.name: f.found for f in examine_blocking(LOSS, subject, begin=lambda _: None) if f.found}
    assert check in findings
    assert words in findings[check]


def test_the_checks_are_named_by_what_must_hold() -> None:
    claims: list[str] = []
    examine_blocking(LOSS, LossSubject(find_loss("GRPO"), SETTINGS["default"]), begin=claims.append)
    assert claims == [check.claim for check in LOSS]
    assert all(check.remedy for check in LOSS)
