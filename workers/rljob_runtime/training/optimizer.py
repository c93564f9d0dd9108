"""The optimizer of all backends: AdamW (decoupled weight decay, arXiv 1711.05101), whose state exists from the start.

The state is created before the first step, so that a checkpoint can be copied into it part by part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rljob_core.spec import AlgorithmSpec


def adamw(parameters: Sequence[Tensor], algorithm: AlgorithmSpec) -> torch.optim.AdamW:
    """An optimizer whose moments are zero.

    Args:
        parameters: what it updates.
        algorithm: learning rate (set again at each step) and weight decay.
    """
    optimizer = torch.optim.AdamW(
        parameters, lr=algorithm.learning_rate, weight_decay=algorithm.weight_decay, fused=True
    )
    for parameter in parameters:
        fill_state(optimizer, parameter)
    return optimizer


def learning_rate(algorithm: AlgorithmSpec, step: int) -> float:
    """The learning rate of a step, the first being 0: a linear warm-up, then what `learningRateSchedule` says.

    It depends on the step alone, so that a trainer that starts anywhere continues as another one would have.
    """
    peak, least, warmup = algorithm.learning_rate, algorithm.min_learning_rate, algorithm.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if algorithm.learning_rate_schedule == "Constant" or algorithm.decay_steps is None:
        return peak
    done = min(1.0, (step - warmup) / (algorithm.decay_steps - warmup))
    left = (
        1.0 - done if algorithm.learning_rate_schedule == "Linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    )
    return least + (peak - least) * left


def fill_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    """Give a parameter the state that AdamW's first step would make."""
    optimizer.state[parameter] = {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def moments_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The parts of a parameter's state that are of its shape."""
    state = optimizer.state[parameter]
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step"
    }
