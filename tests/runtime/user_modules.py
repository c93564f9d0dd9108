"""Modules of users' reward functions, as tests of rewards import them."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash


def user_module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Write a module that can be imported, under a name of its own: a pool's server may keep modules. The name."""
    name = f"user_reward_{xxhash.xxh32_hexdigest(str(folder).encode())}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return name
