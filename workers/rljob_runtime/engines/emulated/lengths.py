"""How long the responses of the engine `Emulated` are.

A length depends on the options' seed, the prompt, the request's seed and, if lengths grow, the version of the weights
that the response begins with, and on nothing else:

    median · (1 + growthPerVersion)^version · exp(promptSigma · z(prompt) + within · z(prompt, request's seed))

with within = sqrt(sigma² − promptSigma²) and standard normal z, clipped to min and max. The request's max_tokens cut it
afterwards.
"""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.emulated.options import LengthOptions

#: Largest exponent of a growth factor: beyond it, a float overflows, and every length is cut at `max` long before.
_LARGEST_EXPONENT = 700.0


def response_length(options: LengthOptions, prompt: NDArray[np.int32], seed: int, version: int = 0) -> int:
    """Length of a response in tokens.

    Args:
        options: of the distribution.
        prompt: int32 [p].
        seed: of the request.
        version: policy version of the weights that the response began with.
    """
    text = prompt.tobytes()
    within = math.sqrt(options.sigma**2 - options.prompt_sigma**2)
    deviation = options.prompt_sigma * _normal(options.seed, text) + within * _normal(
        options.seed, text, seed
    )
    median = options.median * _growth(options.growth_per_version, version)
    return round(min(max(median * math.exp(deviation), options.min), options.max))


def _growth(per_version: float, version: int) -> float:
    """(1 + per_version) ** version; 1 before there is a version."""
    if version <= 0:
        return 1.0
    if per_version == -1:
        return 0.0
    return math.exp(min(version * math.log1p(per_version), _LARGEST_EXPONENT))


def _normal(*key: int | bytes) -> float:
    """A draw from the standard normal distribution that depends on the key alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return NormalDist().inv_cdf((int.from_bytes(digest) + 0.5) / 2**64)
