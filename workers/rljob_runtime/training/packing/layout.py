"""Where the tokens of packed groups are: `[prompt][response 1]…[response G]`, several groups in one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """The place of a group in a packed sequence.

    Attributes:
        start: index of its first token.
        prompt: number of tokens of the prompt; 0 if there is none.
        responses: number of tokens of each response, in order; may be 0.
    """

    start: int
    prompt: int
    responses: tuple[int, ...]

    @property
    def prompt_slice(self) -> slice:
        """The prompt's place in the sequence."""
        return slice(self.start, self.start + self.prompt)

    @property
    def answers_slice(self) -> slice:
        """The place of all responses in the sequence."""
        first = self.start + self.prompt
        return slice(first, first + sum(self.responses))

    @property
    def longest(self) -> int:
        """Number of tokens of the prompt and the longest response together."""
        return self.prompt + max(self.responses, default=0)

    def response_slices(self) -> Iterator[slice]:
        """Yield the place of each response that is not empty."""
        first = self.start + self.prompt
        for length in self.responses:
            if length:
                yield slice(first, first + length)
            first += length


Layout = tuple[PackedGroup, ...]


def places(layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's group, its response (from 1; 0 in the prompt) and its position, int64 [n] each."""
    groups: list[int] = []
    responses: list[int] = []
    positions: list[int] = []
    for index, group in enumerate(layout):
        sizes = (group.prompt, *group.responses)
        groups += [index] * sum(sizes)
        for response, size in enumerate(sizes):
            responses += [response] * size
            positions += range(group.prompt if response else 0, (group.prompt if response else 0) + size)
    return torch.tensor(groups), torch.tensor(responses), torch.tensor(positions)
