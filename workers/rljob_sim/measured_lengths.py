"""Lengths of answers as a run had them: its own groups, one after the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from statistics import NormalDist, fmean, median, pstdev

from rljob_core.emulation import ResponseLengths
from rljob_core.stable_hash import stable_hash

_NORMAL = NormalDist()


@dataclass(frozen=True)
class MeasuredLengths:
    """The lengths of a run's answers, given to the groups of a simulated job in the same order.

    So a simulation of as many steps generates as many tokens as the run did, with the same stragglers in the same
    groups. After the last group, the first one comes again.

    Attributes:
        groups: lengths in tokens of the answers to each prompt, in the order of prompts and of siblings; none is empty.
        seed: from which lengths of further siblings are drawn.
    """

    groups: tuple[tuple[int, ...], ...]
    seed: int = 0

    def of_sibling(self, prompt: int, sibling: int) -> int:
        """Length of an answer; of one that the run had no sibling of that number for, the length of another one."""
        group = self._group(prompt)
        if sibling < len(group):
            return group[sibling]
        return group[stable_hash(f"{self.seed}/{prompt}/{sibling}") % len(group)]

    def of_prompt(self, prompt: bytes) -> float:
        """Median length of the answers to a prompt, given by its number as text."""
        return float(median(self._group(int(prompt))))

    def cut(self, limit: int) -> MeasuredLengths:
        """These lengths, cut at so many tokens. Answers that the run cut itself are not longer with a higher limit."""
        groups = tuple(tuple(min(length, limit) for length in group) for group in self.groups)
        return MeasuredLengths(groups, self.seed)

    def _group(self, prompt: int) -> tuple[int, ...]:
        return self.groups[prompt % len(self.groups)]

    # ------------------------------------------------------------------------------------------ as a log-normal

    @cached_property
    def all(self) -> list[int]:
        """All lengths, the shortest first."""
        return sorted(length for group in self.groups for length in group)

    @cached_property
    def median(self) -> float:
        """In tokens."""
        return float(median(self.all))

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the length."""
        return pstdev([log(max(length, 1)) for length in self.all])

    @cached_property
    def prompt_sigma(self) -> float:
        """The part of `sigma` that is the prompt's."""
        return sqrt(self.shared) * self.sigma

    @cached_property
    def max(self) -> int:
        """The longest answer."""
        return self.all[-1]

    @cached_property
    def shared(self) -> float:
        """The share of the variance of lengths that siblings have in common: from 0 to 1.

        By a one-way analysis of variance of normal scores, as lengths are skewed and cut.
        """
        ordered = self.all
        groups = [[_score(ordered, length) for length in group] for group in self.groups]
        total, count = len(ordered), len(groups)
        if count < 2 or total == count:
            return 0.0
        mean = fmean(value for group in groups for value in group)
        means = [fmean(group) for group in groups]
        pairs = list(zip(groups, means, strict=True))
        between = sum(len(group) * (own - mean) ** 2 for group, own in pairs) / (count - 1)
        within = sum((value - own) ** 2 for group, own in pairs for value in group) / (total - count)
        size = (total - sum(len(group) ** 2 for group in groups) / total) / (count - 1)
        shared = max(0.0, (between - within) / size)
        return shared / (shared + within) if shared else 0.0


AnswerLengths = ResponseLengths | MeasuredLengths
"""Where the lengths of a simulated job's answers come from."""


def _score(ordered: Sequence[int], length: int) -> float:
    """The normal score of a length: that of the middle of its ranks, as equal lengths are common."""
    middle = (bisect_left(ordered, length) + bisect_right(ordered, length)) / 2
    return _NORMAL.inv_cdf(middle / len(ordered))
