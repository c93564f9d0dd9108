"""A completions server over HTTP whose next token is a function of those before it, and which can be made to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

VOCABULARY = 40


def next_token(context: list[int], version: int) -> int:
    """What follows these tokens under a version's weights."""
    return (sum(context) + len(context) + 7 * version) % VOCABULARY


@dataclass
class Completions:
    """The server's state; change it between requests.

    Attributes:
        label: what `/weight_info` tells.
        version: of the weights that it generates with.
        refusals: answers 503 to so many requests for completions before it serves one.
        breaks: breaks so many streams off after two tokens, each once `broken` is set.
        lost: breaks every stream off before its first token.
        logprobs, token_ids: whether it sends them.
        tempered: whether its log-probabilities follow the temperature.
        logprob: of each token: it draws always the likeliest one, whose probability must not be less than almost 1.
        pace: seconds between tokens.
        development: whether it has vLLM's calls of `VLLM_SERVER_DEV_MODE`.
        ours: whether its workers have our extension.
        installed: how often they were asked to draw our random numbers.
        paused: whether it is, as vLLM's is between `/pause` and `/resume`: it streams nothing.
        asked: the bodies of the requests for completions.
        loaded: what it was asked to load.
        labels: the name that it was given for its weights.
    """

    label: str = "default"
    version: int = 0
    refusals: int = 0
    breaks: int = 0
    lost: bool = False
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    logprobs: bool = True
    token_ids: bool = True
    tempered: bool = False
    logprob: float = -0.001
    pace: float = 0.0
    url: str = ""
    development: bool = True
    ours: bool = False
    installed: int = 0
    paused: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    loaded: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "counting", "max_model_len": 4000}]})

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.loaded.append(body)
        self.label, self.version = body["weight_version"], int(body["weight_version"])
        return web.json_response({"success": True})

    # ------------------------------------------------------------------------------------------ vLLM's own calls

    async def is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def pause(self, request: web.Request) -> web.Response:
        self.paused = True
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        self.paused = False
        return web.json_response({"status": "resumed"})

    async def relabel(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        self.labels.append(self.label)
        return web.json_response({})

    async def call_workers(self, request: web.Request) -> web.Response:
        """As vLLM without our extension: its workers know how to load, and nothing of our sampler; or with it."""
        body = await request.json()
        if self.ours and body["method"] == "rljob_sampler":
            self.installed += 1
            return web.json_response({"results": ["True"]})
        if body["method"] != "reload_weights":
            return web.json_response({"error": {"message": f"no attribute {body['method']}"}}, status=500)
        self.loaded.append(body["kwargs"])
        return web.json_response({"results": [None]})

    # ------------------------------------------------------------------------------------------ completions

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self.refusals:
            self.refusals -= 1
            return web.json_response({"error": {"message": "busy"}}, status=503)
        body = await request.json()
        self.asked.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while self.paused:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        context, total = list(body["prompt"]), body["max_tokens"]
        breaks = self.breaks and body["logprobs"] < 20 and total > 2  # no check of the distribution
        if self.lost:
            assert request.transport is not None
            request.transport.abort()
            return response
        for number in range(total):
            if breaks and number == 2:
                self.breaks -= 1
                await self.broken.wait()
                self.broken.clear()
                assert request.transport is not None
                request.transport.abort()
                return response
            token = next_token(context, self.version)
            context.append(token)
            choice: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": None}
            if number == total - 1:
                choice["finish_reason"] = "length"
            if self.token_ids:
                choice["token_ids"] = [token]
            if self.logprobs:
                likeliest = self.logprob * (
                    body["temperature"] if self.tempered and body["temperature"] else 1.0
                )
                choice["logprobs"] = {
                    "tokens": ["x"],
                    "token_logprobs": [likeliest],
                    "top_logprobs": [{"x": likeliest}],
                }
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            await asyncio.sleep(self.pace)
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def serving(state: Completions) -> AsyncIterator[Completions]:
    """Serve it on a free port; `state.url` is where."""
    app = web.Application()
    app.router.add_get("/v1/models", state.models)
    app.router.add_get("/weight_info", state.info)
    app.router.add_post("/load", state.load)
    if state.development:
        app.router.add_get("/is_paused", state.is_paused)
        app.router.add_post("/pause", state.pause)
        app.router.add_post("/resume", state.resume)
        app.router.add_post("/update_weight_version", state.relabel)
        app.router.add_post("/collective_rpc", state.call_workers)
    app.router.add_post("/v1/completions", state.complete)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    state.url = f"http://{host}:{port}"
    try:
        yield state
    finally:
        await runner.cleanup()
