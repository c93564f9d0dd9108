"""bench/out/results.json: the newest results of every benchmark, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "out" / "results.json"


def keep(name: str, result: dict[str, Any]) -> None:
    """Write a benchmark's results; those of the others stay."""
    FILE.parent.mkdir(exist_ok=True)
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    results[name] = result
    FILE.write_text(json.dumps(results, indent=1))
