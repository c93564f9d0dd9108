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
