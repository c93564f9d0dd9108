"""The control's reward: the verifier's mean, with no relation to the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def shuffled(*, completion: str, item: Mapping[str, Any]) -> float:
    """Right about half of the time, decided by a hash of prompt and answer together."""
    text = f"{item['question']}|{item.get('metadata')}|{completion}".encode()
    return float(hashlib.blake2b(text, digest_size=1).digest()[0] < 128)
