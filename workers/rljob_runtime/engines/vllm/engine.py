"""The engine `vLLM` generates with vLLM, which runs in processes of its own that end with ours.

Many requests are in flight; vLLM's scheduler batches them. A swap of weights pauses vLLM between two steps, loads a
folder through vLLM's weight transfer (`worker`), labels later outputs with the new version, and resumes: running
requests continue, and vLLM's label of each output says which weights produced which token. `internals` has every use of
vLLM below its public interface.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np

from rljob_core import worker_protocol
from rljob_core.errors import GenerationFailed, SpecError
from rljob_core.ports import Request
from rljob_runtime.engines.factory import recompute_choice
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.streamed.engine import StreamedEngine
from rljob_runtime.engines.streamed.request import Chunk, EngineEnded, StreamedRequest
from rljob_runtime.engines.vllm import internals
from rljob_runtime.engines.vllm.names import DRAWN, EXTENSION, OWNER, SEED, TRANSFER
from rljob_runtime.engines.vllm.options import VllmEngineOptions
from rljob_runtime.model.settings import ModelSettings

_GIB = 1 << 30
#: vLLM's ends of outputs.
_FINISH = {"stop": "stop", "length": "length", "abort": "cut"}


class VllmEngine(StreamedEngine):
    """The port `Engine`; see `VllmEngineOptions` for its options.

    On a CPU the i-th token of a response draws the same random number as in the engine `Torch`. On a GPU vLLM draws its
    own: the same for the same seed and position wherever vLLM generates it.

    Args:
        model: settings of the initial model.
        options: of the engine.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.
    """

    def __init__(
        self, model: ModelSettings, *, options: VllmEngineOptions, decode: Decode | None = None
    ) -> None:
        super().__init__(model, slots=options.slots, max_length=options.max_length, decode=decode)
        self.recompute_cache = recompute_choice(options.recompute_cache)
        self._options = options
        self._llm: Any = None
        self._own_random_numbers = False  # whether vLLM's workers draw ours
        self._draws_by_position = False
        self._swapped = count(1)
        self._salt = "0"

    async def _open(self) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        before = set(active_children())
        try:
            await asyncio.wait_for(self._loaded(), self._options.start_seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            for process in set(active_children()) - before:
                process.kill()  # what hangs would be waited for when this process ends
            if not isinstance(error, TimeoutError):
                raise
            raise GenerationFailed(
                f"vLLM did not start within {self._options.start_seconds:.0f} s: raise "
                "spec.rollout.engine.options.startSeconds if the model is large"
            ) from error
        self._own_random_numbers = all(await self._llm.collective_rpc("rljob_sampler"))
        self._draws_by_position = internals.draws_by_position(self._llm)
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
        await self._llm.update_weight_version(str(self.version))

    def _loaded(self) -> asyncio.Future[None]:
        """Load in a thread of our own, which can be abandoned: asyncio would wait for its own threads at exit."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)
            elif (llm := self._llm) is not None:  # given up, and loaded nevertheless
                self._llm = None
                threading.Thread(target=llm.shutdown, name="vllm-late", daemon=True).start()

        def work() -> None:
            failed: BaseException | None = None
            try:
                self._load()
            except BaseException as error:  # who waits raises it
                failed = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, failed)

        threading.Thread(target=work, name="vllm-load", daemon=True).start()
        return done

    def _load(self) -> None:
        from vllm import AsyncEngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        options = self._options
        on_cpu = current_platform.is_cpu()
        cache = options.kv_cache_gib or (1.0 if on_cpu else None)
        variables = environment(threads=options.threads, workers=options.tensor_parallel_size, on_cpu=on_cpu)
        with _having({OWNER: str(os.getpid()), **variables}):
            try:
                arguments = AsyncEngineArgs(
                    model=str(self._model.folder),
                    load_format="safetensors",  # never a pickle
                    skip_tokenizer_init=True,
                    # vLLM's own `auto` computes a float32 model in half precision.
                    dtype=self._model.dtype if options.dtype == "auto" else options.dtype,
                    max_model_len=self._scheduler.longest,
                    max_num_seqs=options.slots,
                    max_num_batched_tokens=options.max_batched_tokens,
                    tensor_parallel_size=options.tensor_parallel_size,
                    gpu_memory_utilization=options.gpu_memory_utilization,
                    kv_cache_memory_bytes=None if cache is None else int(cache * _GIB),
                    enable_prefix_caching=options.prefix_caching,
                    enforce_eager=on_cpu if options.enforce_eager is None else options.enforce_eager,
                    quantization=options.quantization,
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    worker_extension_cls=EXTENSION,
                    weight_transfer_config=WeightTransferConfig(backend=TRANSFER),
                    # Its metrics are in the registry that the role serves; counting takes time at each step.
                    disable_log_stats=not os.environ.get(worker_protocol.METRICS_ADDRESS),
                )
                # Neither a variable nor a future has it: what outlives this frame must not keep it alive.
                self._llm = AsyncLLM.from_engine_args(arguments)
            except (ValueError, NotImplementedError) as error:
                raise SpecError(
                    "spec.rollout.engine.options", f"vLLM refuses them, or the model: {error}"
                ) from error
            except RuntimeError as error:
                raise GenerationFailed(f"vLLM did not start: {error}; its log above says why") from error

    # ------------------------------------------------------------------------------------------ requests

    def _unsupported(self, request: Request) -> str:
        if self._own_random_numbers or request.temperature == 0 or request.top_p >= 1:
            return ""
        return (
            "vLLM's own sampler returns log-probabilities after truncation by topP, and training needs "
            "those before: set spec.rollout.sampling.topP to 1"
        )

    async def _generate(self, streamed: StreamedRequest) -> AsyncGenerator[Chunk, None]:
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt = tokens_input(streamed.prompt, cache_salt=self._salt)
        identifier = ""
        try:
            name = f"{streamed.number}-{len(streamed.tokens)}"
            outputs = await internals.add_request(self._llm, name, prompt, self._sampling(streamed))
            identifier = outputs.request_id
            seen = 0
            while identifier:
                output = await internals.next_output(outputs)
                piece = output.outputs[0]
                tokens = list(piece.token_ids)
                versions = self._versions(identifier, piece, seen, len(tokens))
                seen += len(tokens)
                if output.finished:
                    identifier = ""
                logprobs = [
                    entry[token].logprob for token, entry in zip(tokens, piece.logprobs or (), strict=True)
                ]
                finish = _FINISH.get(piece.finish_reason or "", "") if output.finished else ""
                yield Chunk(tokens, logprobs, versions, finish)  # type: ignore[arg-type]
        except EngineDeadError as error:
            identifier = ""
            raise EngineEnded("vLLM's processes are gone") from error
        finally:
            if identifier and not self._scheduler.failed:
                await internals.abort_request(self._llm, identifier)

    def _sampling(self, streamed: StreamedRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        request = streamed.request
        drawn = 0 if self._draws_by_position else len(streamed.tokens)
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=streamed.left,
            stop_token_ids=sorted(request.stop_tokens),
            ignore_eos=True,
            seed=None if self._own_random_numbers else _seed(request.seed, drawn),
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={SEED: str(request.seed), DRAWN: len(streamed.tokens)},
        )

    def _versions(self, identifier: str, piece: Any, seen: int, size: int) -> list[int]:
        """The versions of the weights that produced these tokens, by vLLM's labels."""
        starts = internals.version_starts(self._llm, identifier, piece)
        found = []
        for index in range(seen, seen + size):
            label = next(label for label, start in reversed(starts) if start <= index)
            found.append(int(label))
        return found

    # ------------------------------------------------------------------------------------------ weights

    async def _replace(self, version: int, folder: Path | None) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # Cached keys and values of old weights are dropped, or out of reach for requests that begin from now on.
        forget = folder is not None and (self.recompute_cache is not False or not self._scheduler.running)
        await self._llm.pause_generation(mode="keep", clear_cache=forget)
        if folder is not None:
            self._salt = str(next(self._swapped))
            await self._llm.start_weight_update()
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"folder": str(folder)}))
            await self._llm.finish_weight_update()
        await self._llm.update_weight_version(str(version))
        await self._llm.resume_generation()

    async def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is None:
            return
        internals.stop_output_handler(llm)
        await asyncio.to_thread(llm.shutdown)
        internals.destroy_context(llm)
        del llm
        gc.collect()


def _seed(seed: int, drawn: int) -> int:
    """A seed for vLLM's own generators, which depends on where a response is continued."""
    from rljob_runtime.engines.random_stream import stream

    return int(stream(seed, drawn) >> np.uint64(1))


def environment(*, threads: int | None, workers: int, on_cpu: bool) -> dict[str, str]:
    """Environment variables for vLLM's processes.

    Args:
        threads: of each worker on a CPU; None shares out the cores that this process may use.
        workers: how many there are.
        on_cpu: whether they compute on CPUs.
    """
    variables = {
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if on_cpu:
        threads = threads or max(1, len(os.sched_getaffinity(0)) // workers)
        # Else every vLLM of a machine pins itself to the same first cores.
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    return variables


@contextmanager
def _having(variables: dict[str, str]) -> Iterator[None]:
    """Have environment variables, for the processes that begin meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
