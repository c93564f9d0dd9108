"""The HTTP server of one episode, which its agent takes for OpenAI's.

| call | what it does |
|---|---|
| `POST /v1/chat/completions` | the model's next message, perhaps as server-sent events |
| `GET /v1/models`, `/v1/models/{name}` | the only model |
| `GET /v1/episode` | the prompt, its data item, and the seed |
| `POST /v1/score` | takes the episode's score; the last one counts |

It has no credentials: it only passes requests on to the worker that plays the episode.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from rljob_core.ports import LARGEST_SCORE, EpisodeStart
from rljob_runtime.environments.agent.chat_requests import ChatRequestRefused, read_request
from rljob_runtime.environments.agent.completions import Completion
from rljob_runtime.environments.agent.exchange import TurnExchange

_LARGEST_BODY = 16 << 20
_RETRIES = "x-stainless-retry-count"  # OpenAI's own clients say how often they have sent a request before


class AgentGateway:
    """Serves one agent.

    Args:
        exchange: answers its requests.
        start: of its episode.
        model: name of the model.
        key: that it has to know.

    Attributes:
        score: that the agent has given its episode; None if it has given none.
    """

    def __init__(self, exchange: TurnExchange, start: EpisodeStart, *, model: str, key: str) -> None:
        self._exchange = exchange
        self._start = start
        self._model = model
        self._key = key
        self.score: float | None = None

    async def serve(self) -> str:
        """Serve on the loopback device until the process ends; the base URL."""
        application = web.Application(middlewares=[self._answered], client_max_size=_LARGEST_BODY)
        application.router.add_post("/v1/chat/completions", self._complete)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/v1/models/{name:.*}", self._models)
        application.router.add_get("/v1/episode", self._episode)
        application.router.add_post("/v1/score", self._take_score)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}/v1"

    @web.middleware
    async def _answered(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer, with an error as OpenAI writes it if there is one."""
        try:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(errors="replace"), self._key.encode()):
                message = "this is not the key of this episode: use OPENAI_API_KEY, which each episode has of its own"
                raise ChatRequestRefused(401, "invalid_api_key", message)
            response: web.StreamResponse = await handler(request)
        except ChatRequestRefused as refused:
            return _error(refused)
        except web.HTTPException as error:
            known = ", ".join(sorted({r.canonical for r in request.app.router.resources()}))
            message = f"{error.reason}: {request.method} {request.path}; there are {known}"
            return _error(ChatRequestRefused(error.status, "not_served", message))
        return response

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(await request.read(), model=self._model)
        retried = request.headers.get(_RETRIES, "0") != "0"
        completion = await self._exchange.complete(asked, retried=retried)
        response = (
            await self._streamed(request, completion, usage=asked.stream_usage)
            if asked.stream
            else web.json_response(completion.whole)
        )
        if not asked.stream:
            await response.prepare(request)
            await response.write_eof()
        self._exchange.deliver(completion)
        return response

    async def _streamed(
        self, request: web.Request, completion: Completion, *, usage: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        for event in completion.events(usage=usage):
            await response.write(event)
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "rljob"}
        name = request.match_info.get("name")
        if name is None:
            return web.json_response({"object": "list", "data": [model]})
        if name != self._model:
            message = f"this episode has the model {self._model!r}"
            raise ChatRequestRefused(404, "model_not_found", message, param="model")
        return web.json_response(model)

    async def _episode(self, request: web.Request) -> web.Response:  # noqa: ARG002
        start = self._start
        shown = {
            "prompt": start.text,
            "item": start.item,
            "seed": start.seed,
            "held_out": start.held_out,
            "max_turns": start.max_turns,
        }
        return web.json_response(shown, dumps=lambda value: json.dumps(value, default=str))

    async def _take_score(self, request: web.Request) -> web.Response:
        try:
            given = json.loads(await request.read())
        except (ValueError, RecursionError):
            given = None
        score = given.get("score") if isinstance(given, Mapping) else None
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= LARGEST_SCORE:
            message = f'write {{"score": NUMBER}} between {-LARGEST_SCORE:g} and {LARGEST_SCORE:g}'
            raise ChatRequestRefused(400, "invalid_request_error", message, param="score")
        self.score = float(score)
        return web.json_response({"score": self.score})


def _error(refused: ChatRequestRefused) -> web.Response:
    error = {
        "message": refused.message,
        "type": "invalid_request_error",
        "param": refused.param,
        "code": refused.code,
    }
    return web.json_response({"error": error}, status=refused.status)
