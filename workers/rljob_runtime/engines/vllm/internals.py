"""Every use of vLLM below its public interface: what is used, and why the public interface does not do.

- `AsyncLLM.add_request`, its collector, and `abort(internal=True)`: `generate` hides the id that vLLM gives a request,
  without which its version labels cannot be read.
- `RequestState.weight_version_starts`: public outputs have version labels only once the request has finished, and the
  progress of running requests needs them before.
- `VllmConfig.use_v2_model_runner`: says whether vLLM's random numbers depend on a token's position.
- `AsyncLLM.output_handler` and `engine_core.resources.ctx`: `shutdown` logs an error and leaves a thread behind.
- `model_loader.reload`, and its log: a weight transfer loads layer by layer through it, as vLLM's own transfers do.
- `quant_method.process_weights_after_loading`: says which parameters may have other names once they are loaded.
- `CPUModelRunner` with its `sampler`, `input_batch` and `requests`, `SamplerOutput` and `LogprobsTensors`: vLLM has no
  interface for random numbers of one's own.

`tests/engines/test_vllm_internals.py` has a test for each, which names it when an upgrade of vLLM breaks it. The upper
bound on vLLM in `pyproject.toml` admits the versions that these tests have seen. Importing this module loads no vLLM.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

# ------------------------------------------------------------------------------------------ in our process


async def add_request(llm: Any, name: str, prompt: Any, sampling: Any) -> Any:
    """Submit a request; the collector of its outputs, whose `request_id` is the id that vLLM gave it."""
    return await llm.add_request(name, prompt, sampling)


async def next_output(collector: Any) -> Any:
    """The request's next output, merged from all that have come."""
    return collector.get_nowait() or await collector.get()


async def abort_request(llm: Any, identifier: str) -> None:
    """Withdraw a request by the id that vLLM gave it."""
    await llm.abort(identifier, internal=True)


def version_starts(llm: Any, identifier: str, completion: Any) -> list[tuple[str, int]]:
    """Labels of weights, each with the index of the first token that they produced.

    Args:
        llm: vLLM's engine.
        identifier: the id that vLLM gave the request.
        completion: the newest output's; it has the labels once vLLM has forgotten the finished request.
    """
    state = llm.output_processor.request_states.get(identifier)
    if state is not None:
        return list(state.weight_version_starts)
    return [(span.version, span.start) for span in completion.weight_versions or ()]


def draws_by_position(llm: Any) -> bool:
    """Whether vLLM's own random numbers depend on a token's position instead of how many were drawn before."""
    return bool(llm.vllm_config.use_v2_model_runner)


def stop_output_handler(llm: Any) -> None:
    """Before `shutdown`: end the task that would log the end of the engine as an error."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def destroy_context(llm: Any) -> None:
    """After `shutdown`: close the messaging context that vLLM leaves open, with a thread of its own."""
    llm.engine_core.resources.ctx.destroy(linger=0)


# ------------------------------------------------------------------------------------------ in vLLM's workers


def begin_reload(model: Any) -> None:
    """Expect new weights for a model, layer by layer."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    # At each version vLLM warns of layers without weights of their own, as if they had been forgotten.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    initialize_layerwise_reload(model)


def finish_reload(model: Any, model_config: Any) -> None:
    """Put the weights to use that were loaded since `begin_reload`."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    finalize_layerwise_reload(model, model_config)


def required_parameters(model: Any) -> set[str]:
    """Names of parameters that must come from a file: those that vLLM itself insists on when it loads a model.

    It leaves out what is rearranged once loaded, such as linear layers and embeddings, whose names may change then.
    """
    rearranged = tuple(
        f"{name}."
        for name, module in model.named_modules()
        if hasattr(getattr(module, "quant_method", None), "process_weights_after_loading")
    )
    return {name for name, _ in model.named_parameters() if not name.startswith(rearranged)}


def samples_on_host(runner: Any) -> bool:
    """Whether this is a model runner whose sampler can be replaced by one that computes on the host.

    On a GPU, copying logits to the host at each step would delay the next one.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    return (
        isinstance(runner, CPUModelRunner)
        and not runner.use_async_scheduling
        and not runner.speculative_config
    )


def batch_ids(runner: Any) -> tuple[str, ...]:
    """The requests of the runner's current step, by row."""
    return tuple(runner.input_batch.req_ids)


def sampling_params(runner: Any, identifier: str) -> Any:
    """A request's sampling parameters."""
    return runner.requests[identifier].sampling_params


def generated_tokens(runner: Any, rows: int) -> NDArray[np.int32]:
    """Tokens that the first rows of the current step have generated [rows], whether or not their cache was rebuilt."""
    batch = runner.input_batch
    found: NDArray[np.int32] = batch.num_tokens_no_spec[:rows] - batch.num_prompt_tokens[:rows]
    return found


def sampler_output(tokens: NDArray[np.int64], logprobs: NDArray[np.float32]) -> Any:
    """What a sampler returns: a token per row, with its log-probability. vLLM expects ranks too, which are not used."""
    import torch
    from vllm.v1.outputs import LogprobsTensors, SamplerOutput

    chosen = torch.from_numpy(tokens.astype(np.int32))[:, None]
    ranks = torch.zeros(len(tokens), dtype=torch.int32)
    return SamplerOutput(
        sampled_token_ids=chosen,
        logprobs_tensors=LogprobsTensors(chosen, torch.from_numpy(logprobs)[:, None], ranks),
    )
