"""What authors of plug-ins import: complete, light, and all that the pages and examples name."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACES = [
    "rljob_runtime.engines",
    "rljob_runtime.training",
    "rljob_runtime.rewards",
    "rljob_runtime.environments",
    "rljob_runtime.lengths",
    "rljob_runtime.trackers",
]
HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "deepspeed",
    "peft",
    "safetensors",
    "aiohttp",
    "wandb",
    "mlflow",
    "trackio",
}


@pytest.mark.parametrize(
    "face",
    [
        *FACES,
        "rljob_runtime.engines.registry",
        "rljob_runtime.engines.vllm",
        "rljob_runtime.training.losses.registry",
    ],
)
def test_importing_a_face_loads_no_heavy_library(face: str) -> None:
    code = f"import sys, {face}; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_what_it_names(face: str) -> None:
    module = import_module(face)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.parametrize(
    "page", ["docs/custom.md", "docs/data-and-rewards.md", "docs/lengths.md", "docs/migration.md"]
)
def test_pages_import_only_what_faces_export(page: str) -> None:
    imports = re.findall(
        r"^(?:from (rljob_[\w.]+) import (.+)|import (rljob_[\w.]+))$",
        (ROOT / page).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    ours = [found for found in imports if not found[0].startswith("rljob_bigrams")]  # the page's own example
    assert ours
    for module, names, whole in ours:
        assert (module or whole) in FACES
        if module:
            assert set(names.split(", ")) <= set(import_module(module).__all__)
