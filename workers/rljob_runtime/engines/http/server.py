"""A client of an OpenAI-compatible completions server: requests over HTTP, and what the answers mean."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from rljob_core.errors import ResourceMissing, SpecError
from rljob_runtime.engines.factory import OPTIONS

#: Of an event of a stream.
_LONGEST_LINE = 4 << 20
#: Seconds between tries at most.
_LONGEST_WAIT = 10.0


class RequestRefused(Exception):
    """The server refused a request; the message says why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the server answered {status}: {detail}")
        self.status = status


class ServerUnavailable(Exception):
    """The server cannot be reached now, and may be later."""


class ServerBroken(Exception):
    """A stream ended early."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An event of a stream.

    Attributes:
        tokens: ids of the tokens that it brings.
        logprobs: theirs.
        finish: why the stream ends, or "".
        top: log-probabilities of the likeliest tokens at each one's position, the likeliest first; empty if the server
            sends none.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish: str
    top: Sequence[Sequence[float]]


class CompletionStream:
    """The events of a completion; iterate it once.

    Raises:
        ServerBroken: the connection was lost or closed before the end.
        SpecError: an event lacks token ids or log-probabilities.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def close(self) -> None:
        """Break it off, which withdraws the request."""
        self._response.close()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        whole = False
        try:
            async for line in self._response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    whole = True  # read to the end, so that the connection serves again
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ServerBroken(_detail(data.decode()))
                for choice in event.get("choices") or ():
                    yield _piece(choice)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerBroken(f"the connection was lost: {error!r}") from error
        if not whole:
            raise ServerBroken("the stream ended without `data: [DONE]`")


class Server:
    """A client of one server; `open` and `close` it in an event loop.

    Args:
        url: up to and without `/v1`.
        key_variable: environment variable with its key; empty for none.
        patience: seconds that it may stay silent, and during which it is tried again while it cannot be reached.
        connections: at most.
    """

    def __init__(self, url: str, *, key_variable: str, patience: float, connections: int) -> None:
        self.url = url.rstrip("/")
        self._key_variable = key_variable
        self._patience = patience
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make ready to connect.

        Raises:
            ResourceMissing: the key's environment variable is not set.
        """
        headers = {}
        if self._key_variable:
            key = os.environ.get(self._key_variable)
            if not key:
                raise ResourceMissing(
                    f"{OPTIONS}.apiKeyVariable",
                    f"the environment has no {self._key_variable}: set it from a Secret in the pool's template",
                )
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=self._patience),
            connector=aiohttp.TCPConnector(limit=self._connections),
            read_bufsize=_LONGEST_LINE,
        )

    async def close(self) -> None:
        """Disconnect."""
        if self._session is not None:
            await self._session.close()
            # The transports end in the loop's next round.
            await asyncio.sleep(0)

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, patient: bool = True
    ) -> Any:
        """An answer's JSON (None if it has none), tried again while the server cannot be reached, if `patient`.

        Raises:
            RequestRefused: the server will not; with patience, an answer of 500 and above is none yet.
            ServerUnavailable: it cannot be reached.
        """
        answer = None
        async for attempt in self._tries(self._patience if patient else 0.0):
            with attempt:
                async with self._request(method, path, body) as response:
                    text = await response.text()
                    try:
                        answer = json.loads(text) if text.strip() else None
                    except ValueError as error:
                        raise RequestRefused(response.status, f"no JSON, but {text[:100]!r}") from error
        return answer

    @asynccontextmanager
    async def completion(self, body: Mapping[str, Any]) -> AsyncIterator[CompletionStream]:
        """Stream a completion; leaving it withdraws the request. Its beginning is tried again, its continuation is not.

        Raises:
            RequestRefused: the server will not.
            ServerUnavailable: it cannot be reached.
        """
        async with AsyncExitStack() as opened:
            async for attempt in self._tries(self._patience):
                with attempt:
                    request = self._request("POST", "/v1/completions", {**body, "stream": True})
                    response = await opened.enter_async_context(request)
            yield CompletionStream(response)

    def _tries(self, patience: float) -> AsyncRetrying:
        def give_up(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            if isinstance(error, _TryLater) and not patience:
                raise RequestRefused(error.status, error.detail) from error
            raise ServerUnavailable(
                f"{self.url} could not be reached for {patience:.0f} s: {error}"
            ) from error

        return AsyncRetrying(
            retry=retry_if_exception_type(_UNREACHABLE),
            wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT),
            stop=stop_after_delay(patience),
            retry_error_callback=give_up,
        )

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("not open")
        async with self._session.request(method, self.url + path, json=body) as response:
            if response.status >= 500 or response.status == 429:
                raise _TryLater(response.status, _detail(await response.text()))
            if response.status >= 400:
                raise RequestRefused(response.status, _detail(await response.text()))
            yield response


class _TryLater(Exception):
    """An answer that says to try again later."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"it answered {status}: {detail}")
        self.status = status
        self.detail = detail


#: After these a request is tried again; an answer that breaks off counts as none.
_UNREACHABLE = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, _TryLater)


def _detail(text: str) -> str:
    """What an error's body says."""
    try:
        body = json.loads(text)
    except ValueError:
        return text.strip()[:500]
    found = body.get("error", body.get("message", body)) if isinstance(body, dict) else body
    return str(found.get("message", found) if isinstance(found, dict) else found)[:500]


def _piece(choice: Mapping[str, Any]) -> Piece:
    """An event's part about the response.

    Raises:
        SpecError: it lacks token ids or log-probabilities.
    """
    finish = choice.get("finish_reason") or ""
    listed = choice.get("logprobs") or {}
    logprobs = list(listed.get("token_logprobs") or ())
    tokens = choice.get("token_ids")
    if tokens is None:
        tokens = [_token_id(text) for text in listed.get("tokens") or ()]
    if (choice.get("text") or tokens) and (
        len(tokens) != len(logprobs) or None in logprobs or None in tokens
    ):
        lacking = (
            "log-probabilities" if len(logprobs) < max(1, len(tokens)) or None in logprobs else "token ids"
        )
        raise SpecError(
            f"{OPTIONS}.url",
            f"the server sends no {lacking} with its completions, and training needs them: use one that does, as "
            "vLLM's",
        )
    top = [sorted(each.values(), reverse=True) for each in listed.get("top_logprobs") or () if each]
    return Piece(tokens, logprobs, finish, top)


def _token_id(text: str) -> int | None:
    """Of a token as `return_tokens_as_token_ids` has them written."""
    head, _, number = text.partition(":")
    return int(number) if head == "token_id" and number.isdecimal() else None
