"""Models that vLLM's attention on a CPU takes: heads of 32."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_processes import CONTEXT

from rljob_contract.tiny_models import tiny_model


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), hidden=128, context=CONTEXT)
