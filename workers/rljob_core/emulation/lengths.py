"""How long emulated responses are.

A length depends on the distribution's seed, the prompt, the request's seed and, if lengths grow, the version of the
weights that the response begins with, and on nothing else:

    median · (1 + growthPerVersion)^version · exp(promptSigma · z(prompt) + within · z(prompt, request's seed))

with within = sqrt(sigma² − promptSigma²) and standard normal z, clipped to min and max. The request's max_tokens cut it
afterwards.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

#: Largest exponent of a growth factor: beyond it, a float overflows, and every length is cut at `max` long before.
_LARGEST_EXPONENT = 700.0
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class ResponseLengths:
    """A log-normal distribution of lengths, with a factor that siblings share.

    Attributes:
        median: in tokens.
        sigma: standard deviation of the logarithm of the length over all samples.
        prompt_sigma: the part of `sigma` that is the prompt's; at most `sigma`.
        min, max: tokens at which draws are clipped.
        growth_per_version: what the median grows by with each version of the weights, as a fraction.
        seed: from which all lengths are drawn.
    """

    median: float
    sigma: float
    prompt_sigma: float
    min: int
    max: int
    growth_per_version: float = 0.0
    seed: int = 0

    def length(self, prompt: bytes, seed: int, version: int = 0) -> int:
        """Length of a response in tokens.

        Args:
            prompt: whatever identifies it.
            seed: of the request.
            version: policy version of the weights that the response began with.
        """
        within = math.sqrt(self.sigma**2 - self.prompt_sigma**2)
        deviation = self.prompt_sigma * _of_prompt(self.seed, prompt)
        if within:
            deviation += within * standard_normal(self.seed, prompt, seed)
        median = self.median * self._growth(version)
        return round(min(max(median * math.exp(deviation), self.min), self.max))

    def of_prompt(self, prompt: bytes) -> float:
        """Median length of the responses to a prompt, unclipped and before they grow."""
        return self.median * math.exp(self.prompt_sigma * _of_prompt(self.seed, prompt))

    def _growth(self, version: int) -> float:
        """(1 + growth_per_version) ** version; 1 before there is a version."""
        if version <= 0:
            return 1.0
        if self.growth_per_version == -1:
            return 0.0
        return math.exp(min(version * math.log1p(self.growth_per_version), _LARGEST_EXPONENT))


def standard_normal(*key: int | bytes) -> float:
    """A draw from the standard normal distribution that depends on the key alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return _NORMAL.inv_cdf((int.from_bytes(digest) + 0.5) / 2**64)


@lru_cache(maxsize=4096)
def _of_prompt(seed: int, prompt: bytes) -> float:
    """The draw that the siblings of a prompt share."""
    return standard_normal(seed, prompt)
