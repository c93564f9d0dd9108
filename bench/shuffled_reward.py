"""A reward function for the control run of `bench.learning`: unrelated to the answer, with a verifier's mean."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def shuffled(*, completion: str, item: Mapping[str, Any]) -> float:
    """1 for about half of all answers and 0 for the others, by a hash of prompt and answer."""
    text = f"{item['question']}|{item.get('metadata')}|{completion}".encode()
    return float(hashlib.blake2b(text, digest_size=1).digest()[0] < 128)
