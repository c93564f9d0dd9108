"""The engine `HTTP` generates on an OpenAI-compatible completions server.

It replaces the server's weights (`Reload`), or reads which version the server has (`Publish`).

A server belongs to one engine. Others may restart it at any time, and then it has its initial weights again. So the
engine uses the tokens of a stream only after the server, with the stream open, has said which version it has. A broken
stream begins again behind the tokens that came.

    Reload:   streams are cut → pause → load the folder → label → resume
    Publish:  streams continue; their tokens get the lower of the versions reported before and after a stream begins
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_core.errors import ResourceMissing, SpecError, WeightsRejected
from rljob_core.ports import Request
from rljob_runtime.engines.factory import OPTIONS
from rljob_runtime.engines.http.options import HttpEngineOptions
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.streamed.engine import StreamedEngine
from rljob_runtime.engines.streamed.request import Chunk, EngineEnded, StreamedRequest
from rljob_runtime.model.settings import ModelSettings

if TYPE_CHECKING:
    from rljob_runtime.engines.http.capabilities import ServerCapabilities
    from rljob_runtime.engines.http.server import CompletionStream, Server

#: A server's label before anybody has given it another one: it has the weights that it was started with.
_INITIAL = "default"
#: Seconds between two reads of the version of a server that something else gives its weights.
_LOOK_SECONDS = 1.0
_FINISH = {"stop": "stop", "length": "length", "abort": "cut"}


class HttpEngine(StreamedEngine):
    """The port `Engine`; see `HttpEngineOptions` for its options.

    The i-th token of a response draws the same number as in other engines where the server is vLLM's on a CPU with the
    worker extension `RLJobWorker`. With others, a response depends on its seed and on where it was cut.

    Args:
        model: settings of the initial model.
        options: of the engine.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.
    """

    def __init__(
        self, model: ModelSettings, *, options: HttpEngineOptions, decode: Decode | None = None
    ) -> None:
        staging = None if options.staging is None else Path(options.staging)
        super().__init__(
            model, slots=options.slots, max_length=options.max_length, decode=decode, staging=staging
        )
        self._options = options
        self._reloads = options.weights == "Reload"
        self._client: Server | None = None
        self._discovered: ServerCapabilities | None = None
        self._streams: set[CompletionStream] = set()
        self._replacing = False
        #: Whether another server may answer in place of the one that we know.
        self._may_have_restarted = False
        self._asking = asyncio.Lock()

    # ------------------------------------------------------------------------------------------ the beginning

    async def _open(self) -> None:
        from rljob_runtime.engines.http.capabilities import discover_capabilities
        from rljob_runtime.engines.http.server import RequestRefused, Server, ServerBroken, ServerUnavailable

        options = self._options
        self._client = Server(
            options.url,
            key_variable=options.api_key_variable,
            patience=options.timeout_seconds,
            connections=options.slots + 8,
        )
        await self._client.open()
        try:
            self._discovered = await discover_capabilities(self._client, options)
        except (ServerUnavailable, ServerBroken) as error:  # it may be restarting
            raise ResourceMissing(f"{OPTIONS}.url", str(error)) from error
        except RequestRefused as error:
            raise SpecError(
                f"{OPTIONS}.url", f"{error}; is it a completions server of this model?"
            ) from error

        if self._discovered.context is not None:
            self._scheduler.longest = min(self._scheduler.longest, self._discovered.context)

    @property
    def _server(self) -> Server:
        if self._client is None:
            raise RuntimeError("the engine has not started")
        return self._client

    @property
    def _capabilities(self) -> ServerCapabilities:
        if self._discovered is None:
            raise RuntimeError("the engine has not started")
        return self._discovered

    async def _check_same_server(self) -> None:
        """After a connection broke, ask again what the server can do: it may be another one, without our sampler.

        Raises:
            EngineEnded: its capabilities have changed.
            ServerBroken, ServerUnavailable: it does not answer now.
        """
        from rljob_runtime.engines.http.capabilities import rediscover_capabilities
        from rljob_runtime.engines.http.server import RequestRefused

        async with self._asking:
            if not self._may_have_restarted:
                return
            self._may_have_restarted = False
            try:
                found = await rediscover_capabilities(self._server, self._options)
            except (SpecError, RequestRefused) as error:
                raise EngineEnded(str(error)) from error
            except BaseException:
                self._may_have_restarted = True
                raise
            if found != self._capabilities:
                raise EngineEnded(
                    f"{self._server.url} was restarted as another server: {found} and not {self._capabilities}"
                )

    # ------------------------------------------------------------------------------------------ requests

    def _unsupported(self, request: Request) -> str:
        return self._capabilities.unsupported(request)

    async def _generate(self, streamed: StreamedRequest) -> AsyncGenerator[Chunk, None]:
        from rljob_runtime.engines.http.server import ServerBroken, ServerUnavailable

        request, drawn, version = streamed.request, len(streamed.tokens), self.version
        body = self._capabilities.body(
            streamed.prompt,
            seed=request.seed,
            drawn=drawn,
            left=streamed.left,
            temperature=request.temperature,
            top_p=request.top_p,
            stop=request.stop_tokens,
        )
        try:
            await self._check_same_server()
            before = version if self._reloads else await self._served()
            async with self._server.completion(body) as pieces:
                self._streams.add(pieces)
                try:
                    # The server that has this stream says so: none that has just been restarted can.
                    after = await self._served()
                    if self._replacing or self.version != version:
                        return
                    made_by = min(before, after)
                    if made_by < version or (self._reloads and after != version):
                        raise EngineEnded(
                            f"{self._server.url} has version {after} and not {version}: it was restarted, or given "
                            "other weights"
                        )
                    async for piece in pieces:
                        versions = None if self._reloads else [made_by] * len(piece.tokens)
                        finish = _FINISH.get(piece.finish, "")
                        yield Chunk(piece.tokens, piece.logprobs, versions, finish)  # type: ignore[arg-type]
                finally:
                    self._streams.discard(pieces)
        except ServerBroken:
            # Unless it was us, for new weights. The request begins again, behind what came.
            self._may_have_restarted |= not self._replacing and self.version == version
        except ServerUnavailable as error:
            raise EngineEnded(str(error)) from error

    # ------------------------------------------------------------------------------------------ weights

    async def _label(self) -> str:
        from rljob_runtime.engines.http.capabilities import label

        return await label(self._server, self._options)

    async def _served(self) -> int:
        """The version that the server has; -1 if its label is no version."""
        label = await self._label()
        if label == _INITIAL:
            return 0
        return int(label) if label.isdecimal() else -1

    async def _stage(self, version: int, tensors: Iterable[tuple[str, Any]] | None) -> Path | None:
        from rljob_runtime.engines.http.server import RequestRefused, ServerUnavailable

        try:
            if not self._reloads:
                await self._published(version)
                return None
            folder = await super()._stage(version, tensors)
            untouched = not self._options.reload_path and await self._label() == _INITIAL
        except (RequestRefused, ServerUnavailable) as error:
            raise WeightsRejected(str(error)) from error
        return self._model.folder if folder is None and not untouched else folder

    async def _published(self, version: int) -> None:
        """Wait until the server has a version, or a later one.

        Raises:
            WeightsRejected: it takes too long.
        """
        give_up = time.monotonic() + self._options.timeout_seconds
        while (served := await self._served()) < version:
            if time.monotonic() > give_up:
                raise WeightsRejected(f"{self._server.url} has version {served}, and did not get {version}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _replace(self, version: int, folder: Path | None) -> None:
        if not self._reloads:
            return
        self._replacing = True
        try:
            for one in list(self._streams):
                one.close()
            if self._options.reload_path:
                await self._reload_elsewhere(version, folder or self._model.folder)
            else:
                await self._reload_vllm(version, folder)
        finally:
            self._replacing = False

    async def _reload_elsewhere(self, version: int, folder: Path) -> None:
        body = {"model_path": str(folder), "weight_version": str(version)}
        answer = await self._server.ask("POST", self._options.reload_path, body)
        if isinstance(answer, dict) and answer.get("success") is False:
            raise RuntimeError(f"{self._server.url} did not load {folder}: {answer.get('message', answer)}")

    async def _reload_vllm(self, version: int, folder: Path | None) -> None:
        from rljob_runtime.engines.http.capabilities import LOADING, relabel

        ask = self._server.ask
        await ask("POST", "/pause?mode=abort&clear_cache=true")
        await relabel(self._server, LOADING)
        if folder is not None:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            await ask("POST", "/collective_rpc", body)
        # Were it restarted meanwhile, it would have its initial weights, and not this label.
        if await self._label() != LOADING:
            raise RuntimeError(f"{self._server.url} was restarted while it loaded version {version}")
        await relabel(self._server, str(version), patient=False)
        await ask("POST", "/resume")

    async def _shut_down(self) -> None:
        if self._client is not None:
            await self._client.close()
