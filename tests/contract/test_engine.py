"""What every engine does, whatever computes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors.torch import load_file

from rljob_contract.check import Check
from rljob_contract.engine import ENGINE
from rljob_contract.engine_subject import EngineSubject
from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError
from rljob_runtime.engines.registry import create_engine, find_engine

SLOTS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "Torch": {"slots": SLOTS, "threads": 1, "device": "cpu"},
    "Emulated": {"slots": SLOTS, **find_engine("Emulated").endless_options},
}


@pytest_asyncio.fixture(params=list(OPTIONS), scope="module", loop_scope="module")
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineSubject]:
    model = tiny_model(tmp_path_factory.mktemp("model"), context=100_000)
    subject = EngineSubject(
        lambda: create_engine(request.param, model_path=model, options=OPTIONS[request.param]),
        lambda: load_file(model / "model.safetensors").items(),
        endless=90_000,
    )
    yield subject
    await subject.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", ENGINE, ids=lambda check: check.name)
async def test_contract(check: Check[EngineSubject], subject: EngineSubject) -> None:
    await check.run(subject)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vLLm", {}, r"spec\.rollout\.engine\.name: 'vLLm' is unknown: .*write one of Torch, "),
        ("Torch", {"slot": 1}, r"spec\.rollout\.engine\.options\.slot: .*slots"),
        ("Torch", {"slots": "8"}, r"spec\.rollout\.engine\.options\.slots: a whole number is needed"),
        ("Emulated", {"lengths": {"sigma": 0.1}}, r"options\.lengths: .*promptSigma"),
    ],
)
def test_what_no_engine_understands_is_refused(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        create_engine(name, model_path=tmp_path, options=options)
