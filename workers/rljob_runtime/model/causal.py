"""Hugging Face causal models, as engines and trainer backends hold them: loading, published names, taking weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from shutil import copyfile
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.logging import disable_progress_bar

from rljob_core.errors import SpecError
from rljob_runtime.model.identity import check_weights, tied_names

#: Of these, transformers before 5.23 leaves the soft cap of attention scores out of everything but eager attention.
_EAGER = ("gemma2",)
#: While transformers loads or makes a model it has functions of its own replaced, such as the one that ties embeddings:
#: if two threads load at once, the second may leave them so.
_LOADING = Lock()


def load_model(path: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in a folder, with dropout off.

    Raises:
        SpecError: the folder holds no causal language model.
    """
    with _of_folder(path) as chosen:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, trust_remote_code=False, **chosen
        )
    return model.to(device).eval()


def empty_model(path: Path, *, dtype: torch.dtype) -> Any:
    """A model as `load_model` makes it, on the CPU, with weights of no particular value.

    Their memory is not touched: what a rank drops before it writes to it has cost none.

    Raises:
        SpecError: the folder holds no causal language model.
    """
    with _of_folder(path) as chosen, no_init_weights():
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False, **chosen)
        model.tie_weights()
    return model.eval()


@contextmanager
def _of_folder(path: Path) -> Iterator[dict[str, str]]:
    """What to load a folder's model with; what is wrong with the folder becomes our error."""
    if not (path / "config.json").is_file():
        raise SpecError("spec.model.uri", f"{path} holds no config.json: name a model's folder")
    disable_progress_bar()  # a role loads models in the middle of its log
    try:
        with _LOADING:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            yield {"attn_implementation": "eager"} if config.model_type in _EAGER else {}
    except (OSError, ValueError, KeyError) as error:
        raise SpecError("spec.model.uri", f"{path} holds no causal language model: {error}") from error


def write_settings(path: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """Write a model's config.json, and how it generates, to another folder, for weights of this dtype."""
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    config.dtype = dtype
    config.save_pretrained(folder)
    if (path / GENERATION_CONFIG_NAME).is_file():
        copyfile(path / GENERATION_CONFIG_NAME, folder / GENERATION_CONFIG_NAME)


def decoder_layers(model: Any) -> list[tuple[str, nn.Module]]:
    """The decoder layers in order, by name.

    Raises:
        SpecError: the model has no list of as many layers as its configuration says.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return [(f"{name}.{number}", layer) for number, layer in enumerate(module)]
    raise SpecError(
        "spec.model.uri", f"{type(model).__name__} has no list of decoder layers: use another architecture"
    )


def checkpoint_activations(model: Any, *, again: Callable[[], AbstractContextManager[Any]]) -> None:
    """Keep each decoder layer's input only, and compute the layer again in the backward.

    Args:
        model: in place.
        again: what to compute it in then, which is outside of whatever the forward was in.
    """

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), again()

    for _, layer in decoder_layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)


def published(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights and persistent buffers by name, each tensor once (tied ones under the first name)."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def check_published(model: Any, tensors: Mapping[str, Any]) -> None:
    """Check that tensors are the model's published weights; tied ones may have any of their names.

    Raises:
        WeightsRejected: one is unknown, missing or of another shape.
    """
    own = model.state_dict(keep_vars=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    check_weights(tensors, shapes, tied=tied_names(own))


def copy_weights(model: Any, tensors: Mapping[str, Any]) -> None:
    """Copy checked weights into a model."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
