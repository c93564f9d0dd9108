"""Prompts with the lengths of their answers: synthetic ones, and tasks of reasoning-gym with written-out solutions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import reasoning_gym

from rljob_core.lengths import Estimate, GroupLengths, Prompt, rank_correlation

SIBLINGS = 8
UNLIMITED = 10**9

Groups = list[tuple[Prompt, GroupLengths]]


@dataclass(frozen=True)
class Case:
    """Groups of one job.

    Attributes:
        groups: what a predictor sees.
        truth: mean logarithm of all answers that the policy could give to each prompt.
    """

    groups: Groups
    truth: list[float]

    def correlation(self, estimates: Sequence[Estimate]) -> float:
        """Of estimates of the last groups with the truth."""
        return rank_correlation([one.tokens for one in estimates], self.truth[-len(estimates) :])


def synthetic(groups: int, *, seed: int, limit: int = UNLIMITED, explained: float = 0.8) -> Case:
    """Lengths as measured of a reasoning model: median 1,160 tokens, sigma 0.99, of which 0.855 are the prompt's.

    Texts are random words of 8 topics, and a number. The topic, the words and the number's size each make an answer
    longer or shorter.

    Args:
        limit: of an answer's tokens.
        explained: the part of the variance between prompts that the text explains.
    """
    generator = random.Random(seed)
    words = ["".join(generator.choice(p) for p in ("bdfgklmnprst", "aeiou") * 3)[: 2 * generator.randint(1, 3)]
             for _ in range(400)]  # fmt: skip
    effects = [generator.gauss(0, 1) for _ in words]
    topics = [(generator.gauss(0, 1), generator.sample(range(len(words)), len(words))) for _ in range(8)]
    cumulative = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))
    texts, topical, worded, sized = list[str](), list[float](), list[float](), list[float]()
    for _ in range(groups):
        effect, ranking = generator.choice(topics)
        drawn = generator.choices(ranking, cum_weights=cumulative, k=generator.randint(15, 60))
        size = generator.uniform(0, 5)
        texts.append(f"{' '.join(words[word] for word in drawn)} {int(10**size)}.")
        topical.append(effect)
        worded.append(sum(effects[word] for word in drawn) / len(drawn))
        sized.append(size)
    read = standardised([sum(one) for one in zip(*map(standardised, (topical, worded, sized)), strict=True)])
    truth = [
        math.log(1160)
        + 0.855 * (math.sqrt(explained) * one + math.sqrt(1 - explained) * generator.gauss(0, 1))
        for one in read
    ]
    return case(texts, truth, generator, within=0.5, limit=limit)


def gym(groups: int, *, seed: int, limit: int = UNLIMITED) -> Case:
    """Tasks of reasoning-gym whose items vary in difficulty; a token is a character of the written-out solution."""
    third = groups // 3 + 1
    sums = reasoning_gym.create_dataset(
        "chain_sum", seed=seed, size=third, min_terms=2, max_terms=8, min_digits=1, max_digits=4
    )
    divisors = reasoning_gym.create_dataset("gcd", seed=seed, size=third, max_value=10_000)
    words = reasoning_gym.create_dataset("spell_backward", seed=seed, size=third, max_word_len=14)
    solved = [(item["question"], running_sum(item["metadata"]["expression"])) for item in sums]
    solved += [(item["question"], euclid(*item["metadata"]["numbers"])) for item in divisors]
    solved += [(item["question"], spelled(item["metadata"]["word"])) for item in words]
    generator = random.Random(seed)
    generator.shuffle(solved)
    texts, solutions = zip(*solved[:groups], strict=True)
    return case(texts, [math.log(len(one)) for one in solutions], generator, within=0.15, limit=limit)


def running_sum(expression: str) -> str:
    """`4 - 1 = 3`, `3 + 7 = 10`: a line for each term after the first."""
    first, *rest = expression.split()
    total, lines = int(first), list[str]()
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        following = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {following}")
        total = following
    return "\n".join([*lines, f"<answer>{total}</answer>"])


def euclid(a: int, b: int) -> str:
    """A line for each division."""
    lines = []
    while b:
        lines.append(f"{a} = {a // b} * {b} + {a % b}")
        a, b = b, a % b
    return "\n".join([*lines, f"<answer>{a}</answer>"])


def spelled(word: str) -> str:
    """A line for each letter, with what is written so far."""
    lines = [f"{letter}: {word[::-1][:place]}" for place, letter in enumerate(word[::-1], 1)]
    return "\n".join([*lines, f"<answer>{word[::-1]}</answer>"])


def case(
    texts: Sequence[str], truth: list[float], generator: random.Random, *, within: float, limit: int
) -> Case:
    """Groups whose answers are log-normal around the truth."""
    groups = []
    for number, (text, mean) in enumerate(zip(texts, truth, strict=True)):
        answers = (math.exp(mean + within * generator.gauss(0, 1)) for _ in range(SIBLINGS))
        tokens = tuple(min(limit, max(1, round(answer))) for answer in answers)
        groups.append((Prompt(number, text), GroupLengths(tokens, limit)))
    return Case(groups, truth)


def standardised(values: Sequence[float]) -> list[float]:
    """With mean 0 and standard deviation 1."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / deviation for value in values]
