"""Float32 copies of the weights of a model that computes in bfloat16, which the optimizer updates.

In bfloat16 an update smaller than 1/256 of a weight would be lost, and so would a small addition to a large gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter


class MasterWeights:
    """The float32 twins of a model's parameters; a backward adds its gradients to theirs.

    Args:
        parameters: in training, by name.

    Attributes:
        twins: float32 parameters by name.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters
        self.twins = {name: Parameter(p.detach().float()) for name, p in parameters.items()}
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, self.twins[name]))

    def take(self) -> None:
        """Start from the model's weights."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self.twins[name].copy_(parameter)

    def publish(self) -> None:
        """Round the twins into the model."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self.twins[name])


def _move_gradient(twin: Parameter, parameter: Tensor) -> None:
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return
    if twin.grad is None:
        twin.grad = gradient.float()
    else:
        twin.grad += gradient
