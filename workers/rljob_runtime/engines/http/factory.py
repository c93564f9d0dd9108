"""The factory of the engine `HTTP`; importing it loads no aiohttp."""

from __future__ import annotations

from pathlib import Path

from rljob_core.ports import Engine
from rljob_runtime.engines.factory import EngineFactory
from rljob_runtime.engines.http.fit import check_fit, check_pools
from rljob_runtime.engines.http.options import HttpEngineOptions
from rljob_runtime.engines.stops import Decode
from rljob_runtime.model.settings import model_settings


def _create(model_path: Path, *, options: HttpEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.http.engine import HttpEngine

    return HttpEngine(model_settings(model_path), options=options, decode=decode)


async def _check_server(options: HttpEngineOptions) -> None:
    from rljob_runtime.engines.http.capabilities import check_server

    await check_server(options)


HTTP = EngineFactory(
    _create, HttpEngineOptions, check_fit=check_fit, check_pools=check_pools, check_server=_check_server
)
