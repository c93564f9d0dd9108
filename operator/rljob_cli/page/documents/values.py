"""Reads values out of files that anybody may have written: what is of another type counts as missing."""

from __future__ import annotations

import math
from typing import Any


def text(value: Any) -> str:
    """The text; empty if it is none."""
    return value if isinstance(value, str) else ""


def mapping(value: Any) -> dict[str, Any]:
    """The mapping; empty if it is none."""
    return value if isinstance(value, dict) else {}


def whole(value: Any) -> int:
    """The whole number; 0 if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def finite(value: Any) -> float | None:
    """The number; None if it is none, infinite, or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def without_non_finite(value: Any) -> Any:
    """A copy of a value with None in place of NaN and infinities, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: without_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
