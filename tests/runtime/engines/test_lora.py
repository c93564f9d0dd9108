"""The engine Torch generates with adapters that a trainer published as what `peft` makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapter_versions import AdapterVersion, check_generates_merged

from rljob_contract.tiny_models import tiny_model
from rljob_runtime.engines.registry import create_engine


@pytest.mark.parametrize("architecture", ["qwen2", "gemma2", "qwen3"])
async def test_torch_generates_with_adapters(tmp_path: Path, architecture: str) -> None:
    model = tiny_model(tmp_path / "model", architecture=architecture, spread=0.3)
    published = AdapterVersion(model, tmp_path)
    engine = create_engine("Torch", model_path=model, options={"threads": 1, "device": "cpu"})
    await engine.start()
    try:
        await check_generates_merged(engine, published)
    finally:
        await engine.close()
