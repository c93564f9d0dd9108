"""Reward functions that jobs in tests name as `rewards_for_tests:<function>`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any


def parity(*, completion: str, item: Mapping[str, Any]) -> float:
    return float(zlib.crc32(completion.encode()) % 2)
