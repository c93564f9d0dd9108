"""A base for engines in front of something that answers each request with a stream of tokens: vLLM, or a server.

`RequestScheduler` gathers tokens with their log-probabilities and versions, and ends responses. This class orders what
happens around a swap of weights:

    new weights staged and verified while generation continues → gate shut: no stream begins
      Keep: wait until running streams have ended · Restart: stop them · Update: leave them
    → weights replaced → gate open

An engine either continues a stream under new weights and says which version produced which token, or it *cuts* the
stream before it replaces weights: then a new stream begins once the gate is open, with the tokens so far behind the
prompt. Either way no token is recorded with a newer version than the one that produced it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rljob_core.errors import WeightsRejected
from rljob_core.ports import EngineEvent, EngineLoad, Progress, Request
from rljob_core.spec import Inflight
from rljob_runtime.engines.factory import longest_sequence
from rljob_runtime.engines.staging import Staging
from rljob_runtime.engines.stops import Decode, decoder
from rljob_runtime.engines.streamed.request import Chunk, StreamedRequest
from rljob_runtime.engines.streamed.scheduler import RequestScheduler
from rljob_runtime.model.settings import ModelSettings, tensor_shapes


class StreamedEngine(ABC):
    """The port `Engine` over `_open`, `_generate`, `_replace` and `_shut_down`.

    Args:
        model: settings of the initial model, whose folder has its weights.
        slots: requests that are streamed at once.
        max_length: prompt and response together at most, in tokens; None is the model's context.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.
        staging: where weights are written to; None chooses.
    """

    def __init__(
        self,
        model: ModelSettings,
        *,
        slots: int,
        max_length: int | None,
        decode: Decode | None,
        staging: Path | None = None,
    ) -> None:
        self.slots = slots
        self.version = -1
        self._model = model
        self._scheduler = RequestScheduler(
            slots=slots,
            longest=longest_sequence(model, max_length),
            vocabulary=model.vocabulary,
            decode=partial(decoder, decode, model.folder),
            generate=self._generate,
            unsupported=self._unsupported,
            version=lambda: self.version,
        )
        # A tied output embedding is written by some, and needed by none.
        optional = frozenset({"lm_head.weight"}) if model.tied else frozenset[str]()
        self._staging = Staging(tensor_shapes(model.folder), optional=optional, root=staging)
        self._staged: Path | None = None
        self._swaps = asyncio.Lock()
        self._closed = False

    # ------------------------------------------------------------------------------------- what a subclass implements

    @abstractmethod
    async def _open(self) -> None:
        """Start it, with the initial weights.

        Raises:
            SpecError: it cannot serve this model with these options.
        """

    @abstractmethod
    def _generate(self, streamed: StreamedRequest) -> AsyncGenerator[Chunk, None]:
        """Stream what follows the request's `prompt`, its `left` tokens at most; closing the stream withdraws it.

        Raises:
            EngineEnded: the engine is gone.
            Exception: this request fails.
        """

    @abstractmethod
    async def _replace(self, version: int, folder: Path | None) -> None:
        """Use the weights in a folder of safetensors files as `version` (None: those in use).

        Streams are cut before, or their chunks have versions. Those of other requests do not begin meanwhile.

        Raises:
            WeightsRejected: it cannot, and still uses the old ones.
            Exception: it cannot, and does not know which ones it has.
        """

    @abstractmethod
    async def _shut_down(self) -> None:
        """Stop the engine and free its memory, also if it has not started, or has died."""

    def _unsupported(self, request: Request) -> str:  # noqa: ARG002
        """Why the engine cannot sample as a request asks; empty if it can."""
        return ""

    # ------------------------------------------------------------------------------------------ the port

    async def start(self) -> None:
        """Load the model, or find the server.

        Raises:
            SpecError: the engine cannot serve this model with these options.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        self._scheduler.submit(requests)

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        self._scheduler.cancel(ids)

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: the engine is closed, or died.
        """
        return await self._scheduler.events()

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        return self._scheduler.progress(least)

    def load(self) -> EngineLoad:
        """How busy it is; `tokens` counts those generated since the start."""
        return self._scheduler.load()

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on (`None`: the initial model's).

        Everything is read, and so verified, before anything is replaced, while generation continues.

        Raises:
            WeightsRejected: the tensors do not verify or are not this model's; the old ones stay in use.
            GenerationFailed: the engine is closed, or died.
        """
        scheduler = self._scheduler
        scheduler.check_alive()
        shut = inflight == Inflight.KEEP  # at once: what is submitted from now on is for the new weights
        if shut:
            scheduler.shut_gate()
        try:
            try:
                folder = await self._stage(version, tensors)
            except Exception:
                scheduler.check_alive()  # an engine that is being closed fails in ways of its own
                raise
            async with self._swaps:
                if not shut:
                    scheduler.shut_gate()
                    shut = True
                scheduler.check_alive()
                if inflight == Inflight.RESTART:
                    scheduler.restart_all()
                if inflight == Inflight.KEEP:
                    await scheduler.all_ended()
                await self._use(version, folder)
        finally:
            if shut:
                scheduler.open_gate()

    async def close(self) -> None:
        """Stop generating and free the memory."""
        if self._closed:
            return
        self._closed = True
        self._scheduler.end(None)
        await self._scheduler.withdrawn()
        await self._shut_down()
        await asyncio.to_thread(self._staging.close)

    # ------------------------------------------------------------------------------------------ weights

    async def _stage(self, version: int, tensors: Iterable[tuple[str, Any]] | None) -> Path | None:  # noqa: ARG002
        """A folder with these weights; None if they are those in use.

        Raises:
            WeightsRejected: they do not verify, are not this model's, or cannot be had.
        """
        if tensors is not None:
            return await asyncio.to_thread(self._staging.write, tensors)
        return None if self._staged is None else self._model.folder

    async def _use(self, version: int, folder: Path | None) -> None:
        try:
            await self._replace(version, folder)
        except WeightsRejected:
            await self._drop(folder)
            raise
        except Exception as error:  # which weights it has now is not known
            raise self._scheduler.end(error) from error
        self.version = version
        if folder is not None:
            await self._drop(self._staged)
            self._staged = folder

    async def _drop(self, folder: Path | None) -> None:
        if folder is not None and folder != self._model.folder:
            await asyncio.to_thread(self._staging.drop, folder)
