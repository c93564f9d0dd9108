"""Models that vLLM's attention on a CPU takes: heads of 32; and gangs of processes that train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gangs import Gangs
from vllm_processes import CONTEXT

from rljob_contract.tiny_models import tiny_model


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), hidden=128, context=CONTEXT)


@pytest.fixture(scope="session")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gangs]:
    started = Gangs(tmp_path_factory.mktemp("fork-server") / "log")
    yield started
    started.close()
