"""Random numbers of a response: the i-th token draws the same number in every engine.

The stream is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): its
state is a counter, so that the i-th token of a sequence draws the same number whatever runs beside it and whenever
it joined, and drawing for a whole batch is a handful of vector operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def stream(seed: int, drawn: int = 0) -> np.uint64:
    """The state of the stream of a seed after so many draws, mixed so that neighbouring seeds start far apart."""
    state = _mix(np.array([seed % 2**64], np.uint64) + _GAMMA)
    return np.uint64((state + np.array([drawn], np.uint64) * _GAMMA)[0])


def draw(states: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Advance streams [n] in place; a uniform number of each in (0, 1], float32 [n]."""
    states += _GAMMA
    return ((_mix(states) >> np.uint64(40)).astype(np.float32) + np.float32(1)) * np.float32(2**-24)
