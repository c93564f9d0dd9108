"""The predictor `Ridge`: a linear model of the logarithm of a prompt's lengths, by n-grams and numbers in its text.

Ridge regression (Hoerl and Kennard, Technometrics 12, 1970) in its dual form: with fewer groups than features, it
solves one equation for each group instead of one for each feature (Saunders, Gammerman and Vovk, ICML 1998). The
penalty is the one that predicts the newest groups best from those before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, log, sqrt

import numpy as np

from rljob_core.lengths import WITHIN_PROMPT, Estimate, GroupLengths, Prompt, completed_logs
from rljob_runtime.lengths.history import Floats, TextHistory, TextWeights
from rljob_runtime.lengths.options import RidgeOptions

LEAST_GROUPS = 16
"""Groups before which nothing is fitted: the estimate is the mean of all groups."""

_PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""What is added to the kernel's diagonal, whose mean is 2: the variance of noise by that of the signal."""
_TRIAL_GROUPS = 512
"""Newest groups on which penalties are tried; the last fifth of them is predicted from the others."""
_RECENT_GROUPS = 128
"""Newest groups whose level the estimates have: lengths grow over a job."""
_BEYOND = 0.5
"""How far a logarithm may be beyond those that were observed: a linear function knows no bounds."""
_STEPS = 2
"""Repetitions by which cut answers get their expected lengths; each takes one solution more."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """What a fit has learnt.

    Attributes:
        weights: a function of texts, of the mean logarithm of their answers' lengths.
        shortest, longest: logarithms between which estimates are.
        spread: standard deviation of the logarithm of one answer's length around its estimate.
    """

    weights: TextWeights
    shortest: float
    longest: float
    spread: float


class RidgePredictor:
    """Learns from the newest groups; the same groups in the same order give the same estimates.

    Cut answers count as their expected lengths beyond the limit, given the model's own estimate: the model is fitted,
    gives these, and is fitted again (Schmee and Hahn, Technometrics 21, 1979).

    Args:
        options: how many groups it learns from.
        start: the estimate before anything was observed.
    """

    def __init__(self, options: RidgeOptions, *, start: Estimate = Estimate(512.0, 1.0)) -> None:  # noqa: B008
        self._start = start
        self._history = TextHistory(options.groups)
        self._lengths = deque[GroupLengths](maxlen=options.groups)
        self._new = deque[str](maxlen=options.groups)
        """Texts that are not in the history yet: those of the last of `_lengths`."""
        self._fit: _Fit | None = None

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        """Return an estimate for one answer to each prompt, in their order."""
        fit = self._fit
        if fit is None:
            return [self._before_any_fit()] * len(prompts)
        logs = fit.weights.values([prompt.text for prompt in prompts]).clip(fit.shortest, fit.longest)
        return [Estimate(tokens, fit.spread) for tokens in np.exp(logs).tolist()]

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        """Keep a group for the next fit."""
        self._new.append(prompt.text)
        self._lengths.append(lengths)

    def fit(self) -> None:
        """Learn from the newest groups, if there are any new ones, and enough."""
        if not self._new or len(self._lengths) < LEAST_GROUPS:
            return
        self._history.extend(list(self._new))
        self._new.clear()
        kernel, lengths = self._history.kernel(), list(self._lengths)
        answers = np.array([len(one.tokens) for one in lengths])
        within = _deviation_within(lengths)
        level = self._before_any_fit()
        targets = _means(lengths, [level] * len(lengths), within)
        penalty, error = _best_penalty(kernel, targets)
        # The error is that of a group's mean, and holds a share of its answers' deviations.
        unexplained = max(error**2 - float((within**2 / answers).mean()), 0.0)
        spread = sqrt(unexplained + within**2)
        coefficients = _solve(kernel, targets, penalty)
        for _ in range(_STEPS if any(one.cut for one in lengths) else 0):
            fitted = kernel @ coefficients + targets.mean()
            targets = _means(lengths, [Estimate(exp(one), spread) for one in fitted.tolist()], within)
            coefficients = _solve(kernel, targets, penalty)
        recent = (targets - kernel @ coefficients)[-_RECENT_GROUPS:].mean()
        self._fit = _Fit(
            self._history.weights(coefficients, float(recent)),
            shortest=float(targets.min()) - _BEYOND,
            longest=float(targets.max()) + _BEYOND,
            spread=spread,
        )

    def _before_any_fit(self) -> Estimate:
        """The mean of all groups, without a look at texts."""
        if not self._lengths:
            return self._start
        logs = [log(max(1, tokens)) for one in self._lengths for tokens in one.tokens]
        mean = fsum(logs) / len(logs)
        return Estimate(
            exp(mean), max(WITHIN_PROMPT, sqrt(fsum((one - mean) ** 2 for one in logs) / len(logs)))
        )


def _means(lengths: Sequence[GroupLengths], estimates: Sequence[Estimate], within: float) -> Floats:
    """The mean logarithm of each group: float64 [groups]; for estimates and `within` see `completed_logs`."""
    means = []
    for one, estimate in zip(lengths, estimates, strict=True):
        logs, _ = completed_logs(one, estimate, within=within)
        means.append(fsum(logs) / len(logs))
    return np.array(means)


def _deviation_within(lengths: Sequence[GroupLengths]) -> float:
    """Standard deviation of logarithms around their group's mean, over groups of which no answer was cut."""
    squares, free = 0.0, 0
    for one in lengths:
        if not one.cut:
            logs = [log(max(1, tokens)) for tokens in one.tokens]
            mean = fsum(logs) / len(logs)
            squares += fsum((each - mean) ** 2 for each in logs)
            free += len(logs) - 1
    return sqrt(squares / free) if free else WITHIN_PROMPT


def _best_penalty(kernel: Floats, targets: Floats) -> tuple[float, float]:
    """The penalty under which the newest groups are predicted best from those before, and their mean error then.

    Returns:
        The penalty, and the root of the mean square of the errors.
    """
    kernel, targets = kernel[-_TRIAL_GROUPS:, -_TRIAL_GROUPS:], targets[-_TRIAL_GROUPS:]
    known = len(targets) * 4 // 5
    errors = []
    for penalty in _PENALTIES:
        coefficients = _solve(kernel[:known, :known], targets[:known], penalty)
        predicted = kernel[known:, :known] @ coefficients + targets[:known].mean()
        errors.append(float(np.sqrt(np.square(predicted - targets[known:]).mean())))
    best = int(np.argmin(errors))
    return _PENALTIES[best], errors[best]


def _solve(kernel: Floats, targets: Floats, penalty: float) -> Floats:
    """Coefficients [groups] of the regression: (kernel + penalty · 1)⁻¹ (targets − their mean)."""
    damped = kernel + penalty * np.eye(len(targets))
    coefficients: Floats = np.linalg.solve(damped, targets - targets.mean())
    coefficients -= coefficients.mean()  # it is 0 but for rounding
    return coefficients
