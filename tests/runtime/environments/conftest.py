"""A server that plays episodes of `obedient_environment`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from obedient_environment import OBEDIENT, client_of
from user_modules import user_module

from rljob_runtime.environments.client import EnvironmentClient


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLJOB_NATS_CREDENTIALS", "secret")
    return user_module(tmp_path, monkeypatch, OBEDIENT)


@pytest.fixture
async def client(module: str) -> AsyncIterator[EnvironmentClient]:
    client = client_of(f"{module}:Obedient", timeoutSeconds=20, options={"score": 0.25})
    await client.start()
    yield client
    await client.close()
