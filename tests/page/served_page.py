"""A page on folders of runs that tests write, and requests to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.waiting import until_async

from rljob_cli.page.catalog import Catalog
from rljob_cli.page.server import page_app
from rljob_cli.run_folder.folder import FORMAT

PORT, TOKEN = 8123, "the-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LINE = {"step": 1, "version": 1, "seconds": 1.0, "reward_mean": 0.5}


@asynccontextmanager
async def page(*paths: Path, headers: dict[str, str] | None = None) -> AsyncIterator[httpx.AsyncClient]:
    catalog = Catalog(paths)
    transport = httpx.ASGITransport(app=page_app(catalog, token=TOKEN, port=PORT))
    url = f"http://127.0.0.1:{PORT}"
    async with httpx.AsyncClient(
        transport=transport, base_url=url, headers=BEARER if headers is None else headers
    ) as client:
        try:
            yield client
        finally:
            await catalog.close()


def a_run(folder: Path, *lines: Any, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"metadata": {"name": "sums"}, "spec": {"steps": 4, "rollout": {"pools": []}}}
    identity = {
        "name": "sums",
        "namespace": "default",
        "uid": "0",
        "format": FORMAT,
        "model": "",
        "nats_url": "",
        "manifest": manifest,
    }
    written = {
        "job.json": identity,
        "summary.json": {"job": "sums", "exit": "Succeeded", "steps": 1},
        **files,
    }
    for name, content in written.items():
        if content is not None:
            (folder / name).write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )
    (folder / "metrics.jsonl").write_bytes(
        b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    )
    return folder


async def until(client: httpx.AsyncClient, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The state of the run once it is as wanted."""

    async def state() -> dict[str, Any] | None:
        said = (await client.get("/api/runs/0")).json()
        return said if wanted(said) else None

    return await until_async(state, every=0.1)
