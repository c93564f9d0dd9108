"""How many tokens the KV cache of an engine holds, where responses share prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class KVCache:
    """Counts the tokens that running responses hold; it keeps nothing of a response that does not run.

    The methods take a response's prompt as a key, and the lengths of the prompt and of the response so far in tokens.

    Args:
        capacity: tokens that fit; None for any number.
        prefix_caching: whether a prompt that several responses share is held once.
    """

    def __init__(self, capacity: int | None, *, prefix_caching: bool) -> None:
        self.capacity = capacity
        self.used = 0
        self._prefix_caching = prefix_caching
        self._holders: Counter[Hashable] = Counter()  # responses of each prompt

    @property
    def is_overfull(self) -> bool:
        """Whether it holds more than fits."""
        return self.capacity is not None and self.used > self.capacity

    def missing(self, key: Hashable, prompt: int, response: int) -> int:
        """Tokens of a response that are not held for another one of the same prompt."""
        return response if self._prefix_caching and self._holders[key] else prompt + response

    def fits(self, key: Hashable, prompt: int, response: int) -> bool:
        """Whether a response fits into what is free."""
        return self.capacity is None or self.used + self.missing(key, prompt, response) <= self.capacity

    def add(self, key: Hashable, prompt: int, response: int) -> int:
        """Hold a response, whether it fits or not; returns how many tokens were not held before."""
        added = self.missing(key, prompt, response)
        self.used += added
        self._holders[key] += 1
        return added

    def grow(self, tokens: int) -> None:
        """Hold so many more tokens of the responses that it holds."""
        self.used += tokens

    def free(self, key: Hashable, prompt: int, response: int) -> None:
        """Hold a response no longer."""
        self._holders[key] -= 1
        self.used -= self.missing(key, prompt, response)
        if not self._holders[key]:
            del self._holders[key]

    def steps(self, running: int) -> int | None:
        """How many steps of so many responses can follow each other until it is overfull; None for any number.

        A step holds the contexts as they are before it, and adds a token to each. The next step must fit.
        """
        return None if self.capacity is None else (self.capacity - self.used) // running + 1
