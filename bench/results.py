"""The newest results of every benchmark, by name: bench/out/results-full.json, and one file for each other size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "out"


def keep(name: str, result: dict[str, Any], *, size: str) -> Path:
    """Write a benchmark's results; those of other benchmarks stay. Returns the file."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"results-{size}.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    results[name] = result
    file.write_text(json.dumps(results, indent=1))
    return file


def print_beside(name: str, value: float | None, asked: float | None) -> None:
    """Print a figure beside the most that is asked of it; nothing is asked, or nothing was measured, if None."""
    found = "   none" if value is None else f"{value:>7.3g}"
    beside = "" if value is None or asked is None else f"   asked ≤ {asked:.3g}"
    if beside and asked:
        beside += f", ratio {value / asked:.2f}"  # type: ignore[operator]
    print(f"{name:<56}{found}{beside}", flush=True)
