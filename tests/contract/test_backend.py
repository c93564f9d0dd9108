"""What every trainer backend does, whatever computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_contract.backend import BACKEND, BackendSubject
from rljob_contract.check import Check
from rljob_contract.samples import job_config
from rljob_contract.tiny_models import tiny_model
from rljob_runtime.backends import create_backend

OPTIONS: dict[str, dict[str, Any]] = {"Torch": {"threads": 1}, "Emulated": {}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        made = tmp_path / str(len(list(tmp_path.iterdir())))
        made.mkdir()
        return made

    return make


@pytest.mark.parametrize("check", BACKEND, ids=lambda check: check.name)
@pytest.mark.parametrize("name", OPTIONS)
def test_contract(check: Check[BackendSubject], name: str, model: Path, folder: Callable[[], Path]) -> None:
    config = job_config(model, trainer={"backend": name, "options": OPTIONS[name]})
    check.run(BackendSubject(lambda: create_backend(config, rank=0, world_size=1, model_path=model), folder))
