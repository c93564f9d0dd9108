"""The page's server, until its process is interrupted: documents as JSON, each with an ETag, and the front end."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
import xxhash
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rljob_cli.manifest.differences import by_name, differing, value_in
from rljob_cli.page.access import PageAccess
from rljob_cli.page.catalog import Catalog
from rljob_cli.page.documents.values import without_non_finite
from rljob_cli.page.kept_answers import AnswerQuery
from rljob_cli.page.page_run import PageRun

STATIC = Path(__file__).parent / "static"
_RUNS_PER_PAGE = 100
_COMPARED = 8
_GZIP_BYTES = 64_000
_RUN = re.compile("[0-9]{1,9}")

RunEndpoint = Callable[[Request], Awaitable[Response]]


def page_app(catalog: Catalog, *, token: str, port: int) -> Starlette:
    """The application.

    Args:
        catalog: of the runs.
        token: that requests have to carry.
        port: on which it is served.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        closing = asyncio.create_task(catalog.close_idle())
        yield
        closing.cancel()
        await asyncio.wait({closing})
        await catalog.close()

    answers = _Answers(catalog)
    return Starlette(
        routes=[
            Route("/", _front_page),
            Route("/api/runs", answers.runs),
            Route("/api/compare", answers.compare),
            Route("/api/runs/{run}", answers.of_run(lambda run, _: run.state_document())),
            Route("/api/runs/{run}/curves", answers.of_run(_curves)),
            Route("/api/runs/{run}/timeline", answers.of_run(_timeline)),
            Route("/api/runs/{run}/buffers", answers.of_run(lambda run, _: run.buffers_document())),
            Route("/api/runs/{run}/engines", answers.of_run(lambda run, _: run.engines_document())),
            Route("/api/runs/{run}/samples", answers.samples),
            Route("/api/runs/{run}/audit", answers.of_run(lambda run, _: run.audit_document())),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(PageAccess, token=token, port=port),
            Middleware(GZipMiddleware, minimum_size=_GZIP_BYTES, compresslevel=1),
        ],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


async def serve(catalog: Catalog, listener: socket.socket, *, token: str) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        catalog: of the runs.
        listener: on which the page is served.
        token: that requests have to carry.
    """
    app = page_app(catalog, token=token, port=listener.getsockname()[1])
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=3,
        ws="none",
    )
    await uvicorn.Server(config).serve(sockets=[listener])


class _Answers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def runs(self, request: Request) -> Response:
        """The runs, a page of them; `find` selects by name."""
        start = max(int(_number(request, "start", 0.0)), 0)
        find = request.query_params.get("find", "")
        total, page = await self._catalog.page(find, start=start, limit=_RUNS_PER_PAGE)
        return _document(request, {"total": total, "start": start, "runs": page})

    async def compare(self, request: Request) -> Response:
        """The differences of the manifests of some runs."""
        numbers = [part for part in request.query_params.get("runs", "").split(",") if part]
        if not all(map(_RUN.fullmatch, numbers)):
            raise HTTPException(400, "runs are numbers of the list of runs, with commas between them")
        runs = [await self._run(number) for number in numbers[:_COMPARED]]
        manifests = [run.manifest for run in runs]
        names = [{"name": run.path.name, "known": bool(run.manifest)} for run in runs]
        return _document(request, {"runs": names, "rows": manifest_rows(manifests)})

    async def samples(self, request: Request) -> Response:
        """A page of what the model answered."""
        run = await self._run(request.path_params["run"])
        try:
            query = AnswerQuery.of(request.query_params)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        return _answer(request, await run.answers.document(query))

    def of_run(self, document: Callable[[PageRun, Request], dict[str, Any]]) -> RunEndpoint:
        """An answer with a document of the run that the path names."""

        async def answer(request: Request) -> Response:
            run = await self._run(request.path_params["run"])
            return _document(request, document(run, request))

        return answer

    async def _run(self, number: str) -> PageRun:
        run = await self._catalog.run(int(number)) if _RUN.fullmatch(number) else None
        if run is None:
            raise HTTPException(404, "there is no such run here")
        return run


def manifest_rows(manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fields in which RLJobs as JSON differ, with the value in each; pools are compared by name."""
    specs = [by_name(manifest.get("spec", {})) for manifest in manifests]
    return [
        {"path": f"spec.{path}", "values": [value_in(spec, path) for spec in specs]}
        for path in sorted(differing(specs))
    ]


def _curves(run: PageRun, request: Request) -> dict[str, Any]:
    start = max(int(_number(request, "start", 0.0)), 0)
    return run.curves_document(start, request.query_params.get("generation", ""))


def _timeline(run: PageRun, request: Request) -> dict[str, Any]:
    start, end = (
        _number(request, name, 0.0) if name in request.query_params else None for name in ("start", "end")
    )
    return run.timeline_document(start, end, int(_number(request, "buckets", 400.0)))


def _number(request: Request, name: str, default: float) -> float:
    try:
        found = float(request.query_params.get(name, default))
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or abs(found) > 1e12:
        raise HTTPException(400, f"{name} is not a number")
    return found


def _document(request: Request, content: dict[str, Any]) -> Response:
    """A document as JSON; 304 if the browser has it already."""
    return _answer(request, _json(content))


def _answer(request: Request, body: bytes) -> Response:
    """JSON; 304 if the browser has it already."""
    tag = f'"{xxhash.xxh3_64_hexdigest(body)}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") in {tag, f"W/{tag}"}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def _json(content: dict[str, Any]) -> bytes:
    def written(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), default=str, allow_nan=False).encode()

    try:
        return written(content)
    except ValueError:  # files of a run may hold NaN, with which no browser reads any of the document
        return written(without_non_finite(content))


async def _front_page(_: Request) -> Response:
    return Response((STATIC / "index.html").read_bytes(), media_type="text/html")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  it is registered for these
    return JSONResponse({"error": error.detail}, status_code=error.status_code)
