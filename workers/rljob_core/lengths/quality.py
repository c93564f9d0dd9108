"""How well predictions order what they predict: the rank correlation, and the recall of the longest fifth.

Both are *prequential*: each prediction is made before its length is known, and compared afterwards (Dawid, Journal of
the Royal Statistical Society A 147, 1984). So no data is held back, and a predictor cannot gain by remembering.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import fsum, sqrt

WINDOW = 512
"""Groups over which the quality is measured: older ones were answered by another policy."""
LONGEST = 0.2
"""The part of all groups that counts as the long tail."""
LEAST_CORRELATION = 0.3
"""Rank correlation below which a ranker is no use: its order misplaces nearly as many groups as it places."""
LEAST_GROUPS = 64
"""Groups before which no ranker is trusted: of 64, one random order of a hundred reaches a correlation of 0.3."""


class RankQuality:
    """The quality of one predictor over a sliding window of the newest groups.

    Args:
        window: number of groups, at least 2.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._predicted = deque[float](maxlen=window)
        self._actual = deque[float](maxlen=window)
        self._known: tuple[float, float] | None = (0.0, 0.0)

    def add(self, predicted: float, actual: float) -> None:
        """Take in what was predicted of a group and what came; in any unit, finite. Only their orders count."""
        self._predicted.append(predicted)
        self._actual.append(actual)
        self._known = None

    @property
    def groups(self) -> int:
        """Number of groups in the window."""
        return len(self._actual)

    @property
    def correlation(self) -> float:
        """See `rank_correlation`; computed once after each change, in about a millisecond."""
        return self._figures()[0]

    @property
    def recall(self) -> float:
        """See `recall_of_longest`."""
        return self._figures()[1]

    def _figures(self) -> tuple[float, float]:
        if self._known is None:
            predicted, actual = list(self._predicted), list(self._actual)
            self._known = rank_correlation(predicted, actual), recall_of_longest(predicted, actual)
        return self._known


def rank_correlation(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """Spearman's ρ: Pearson's correlation of the ranks, where equal values share the mean of their ranks.

    From −1 to 1; 0 where all values of a side are equal, as such a side orders nothing, and where there are fewer than
    2 (Spearman, American Journal of Psychology 15, 1904; Kendall, Rank Correlation Methods, chapter 3, on ties).
    """
    x, y = _centred_ranks(predicted), _centred_ranks(actual)
    spread = sqrt(fsum(a * a for a in x) * fsum(b * b for b in y))
    if not spread:
        return 0.0
    return max(-1.0, min(1.0, fsum(a * b for a, b in zip(x, y, strict=True)) / spread))


def recall_of_longest(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """Which part of the longest groups is among as many that were predicted to be the longest.

    Where equal values compete for the last places, each counts with its chance: so a predictor that says the same of
    all has recall `LONGEST`, to rounding. It is 0 where there are no values. At least one group counts as the longest.
    """
    if not actual:
        return 0.0
    places = max(1, round(LONGEST * len(actual)))
    chosen, longest = _chances(predicted, places), _chances(actual, places)
    return fsum(a * b for a, b in zip(chosen, longest, strict=True)) / places


def ranker_counts(ranker: RankQuality, means: RankQuality) -> bool:
    """Whether a ranker's estimates are used, instead of the means'.

    They are while the ranker's rank correlation is at least `LEAST_CORRELATION` and above that of the means, over at
    least `LEAST_GROUPS` groups.
    """
    return (
        ranker.groups >= LEAST_GROUPS
        and ranker.correlation >= LEAST_CORRELATION
        and ranker.correlation > means.correlation
    )


def _centred_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing their mean rank, minus the mean of all ranks."""
    ranks = [0.0] * len(values)
    centre = (len(values) + 1) / 2
    for first, tied in _ties(values, reverse=False):
        rank = first + (len(tied) + 1) / 2
        for index in tied:
            ranks[index] = rank - centre
    return ranks


def _chances(values: Sequence[float], places: int) -> list[float]:
    """The chance of each value to be among the largest `places` ones, if equal values are ordered by lot."""
    chances = [0.0] * len(values)
    for first, tied in _ties(values, reverse=True):
        chance = min(1.0, (places - first) / len(tied))
        if chance <= 0:
            break
        for index in tied:
            chances[index] = chance
    return chances


def _ties(values: Sequence[float], *, reverse: bool) -> list[tuple[int, list[int]]]:
    """The indices of equal values, in the order of the values; each with the number of values before them."""
    order = sorted(range(len(values)), key=values.__getitem__, reverse=reverse)
    groups = list[tuple[int, list[int]]]()
    for place, index in enumerate(order):
        if groups and values[groups[-1][1][0]] == values[index]:
            groups[-1][1].append(index)
        else:
            groups.append((place, [index]))
    return groups
