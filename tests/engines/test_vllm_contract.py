"""vLLM does what every engine does: in process, and behind its server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors.torch import load_file
from tests.night import some
from vllm_processes import vllm_server

from rljob_contract.check import Check
from rljob_contract.engine import ENGINE, SWAPS
from rljob_contract.engine_subject import EngineSubject
from rljob_core.ports import Engine
from rljob_runtime.engines.registry import create_engine

SLOTS = 4
pytestmark = pytest.mark.timeout(1800)


class Alone:
    """An engine over a server that no other engine uses meanwhile."""

    def __init__(self, model: Path, free: list[str]) -> None:
        self._free = free
        self._url = free.pop()
        self._engine = create_engine("HTTP", model_path=model, options={"slots": SLOTS, "url": self._url})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def close(self) -> None:
        await self._engine.close()
        if self._url not in self._free:
            self._free.append(self._url)


def in_process(model: Path, stack: ExitStack, logs: Path) -> Callable[[], Engine]:
    options = {"slots": SLOTS, "threads": 1, "kvCacheGiB": 0.25}
    return lambda: create_engine("vLLM", model_path=model, options=options)


def keeping_its_cache(model: Path, stack: ExitStack, logs: Path) -> Callable[[], Engine]:
    options = {"slots": SLOTS, "threads": 1, "kvCacheGiB": 0.25, "recomputeCache": False}
    return lambda: create_engine("vLLM", model_path=model, options=options)


def behind_its_server(model: Path, stack: ExitStack, logs: Path) -> Callable[[], Any]:
    # Two engines are the most that a check has.
    free = [stack.enter_context(vllm_server(model, logs / f"{number}.log")) for number in range(2)]
    return lambda: Alone(model, free)


# Each takes minutes. Other tests use vLLM behind a server, too.
KINDS = some([in_process, keeping_its_cache, behind_its_server], 1)
# Whether caches are kept matters at a swap; for that, one engine does.
CASES = [(kind, check) for kind in KINDS for check in (SWAPS if kind is keeping_its_cache else ENGINE)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def subject(
    request: pytest.FixtureRequest, vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineSubject]:
    with ExitStack() as stack:
        create = request.param(vllm_model, stack, tmp_path_factory.mktemp("logs"))
        subject = EngineSubject(create, lambda: load_file(vllm_model / "model.safetensors").items())
        yield subject
        await subject.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("subject", "check"),
    CASES,
    indirect=["subject"],
    scope="module",
    ids=[f"{kind.__name__}-{check.name}" for kind, check in CASES],
)
async def test_contract(check: Check[EngineSubject], subject: EngineSubject) -> None:
    await check.run(subject)
