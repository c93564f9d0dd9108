"""Loads Hugging Face causal models for engines and trainer backends, and copies published weights into them.

Two parts of transformers below its public interface are used here, and nowhere else: `no_init_weights`, since
`from_config` would otherwise fill weights that are loaded right after, and `_supports_attention_backend`, the only sign
that a model's attention can be replaced. `tests/engines/test_library_internals.py` names what an upgrade breaks.
"""

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

from rljob_core.errors import RLJobError, SpecError
from rljob_runtime.model.folder_files import check_inside, read_settings, without_safetensors
from rljob_runtime.model.identity import check_weights, tied_names
from rljob_runtime.model.settings import check_whole, weight_files

#: Model types for which transformers before 5.23 applies the soft cap of attention scores in eager attention only.
_EAGER = ("gemma2",)
#: transformers replaces functions of its own, such as the one that ties embeddings, while it loads or makes a model. If
#: two threads load at once, the second may leave them replaced.
_LOADING = Lock()


def load_model(path: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Load the model in a folder, with dropout off.

    Raises:
        SpecError: the folder holds no causal language model.
    """
    with _of_folder(path) as config:
        if not weight_files(path):
            raise without_safetensors(path)
        model = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    return model.to(device).eval()


def empty_model(path: Path, *, dtype: torch.dtype) -> Any:
    """Make a model like `load_model` on the CPU, with uninitialized weights.

    Their memory is not touched, so weights that a rank drops before it writes to them occupy none.

    Raises:
        SpecError: the folder holds no causal language model.
    """
    with _of_folder(path) as config, no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        model.tie_weights()
    return model.eval()


@contextmanager
def _of_folder(path: Path) -> Iterator[Any]:
    """Yield the configuration to load a folder's model with, and turn errors of loading into SpecError.

    The folder does not choose the attention: a name such as `org/kernel` would be downloaded from a hub, and run.
    """
    if not (path / "config.json").is_file():
        raise SpecError("spec.model.uri", f"{path} holds no config.json: name a model's folder")
    check_inside(path)
    check_whole(path)
    if "/" in str(read_settings(path / "config.json").get("transformers_weights") or ""):
        raise SpecError(
            "spec.model.uri", f"{path / 'config.json'} names weights elsewhere (transformers_weights)"
        )
    disable_progress_bar()  # it would be in the middle of a role's log
    try:
        with _LOADING:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            config._attn_implementation = "eager" if config.model_type in _EAGER else None
            yield config
    except (RLJobError, RuntimeError, MemoryError):
        raise
    except Exception as error:  # transformers finds the faults of a config.json by stumbling over them
        raise SpecError("spec.model.uri", f"{path} holds no causal language model: {error}") from error


def write_settings(path: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """Write a model's config.json and generation_config.json to another folder, for weights of this dtype."""
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    config.dtype = dtype
    config.save_pretrained(folder)
    if (path / GENERATION_CONFIG_NAME).is_file():
        copyfile(path / GENERATION_CONFIG_NAME, folder / GENERATION_CONFIG_NAME)


def attention_can_be_replaced(model: Any) -> bool:
    """Whether a model calls its attention through transformers' attention interface."""
    return bool(getattr(model, "_supports_attention_backend", False))


def decoder_layers(model: Any) -> list[tuple[str, nn.Module]]:
    """Return the decoder layers in order, with their names.

    Raises:
        SpecError: no list of modules in the model has as many layers as its configuration says.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return [(f"{name}.{number}", layer) for number, layer in enumerate(module)]
    raise SpecError(
        "spec.model.uri", f"{type(model).__name__} has no list of decoder layers: use another architecture"
    )


def checkpoint_activations(model: Any, *, again: Callable[[], AbstractContextManager[Any]]) -> None:
    """Make each decoder layer keep only its input, and recompute the layer in the backward pass.

    Args:
        model: changed in place.
        again: makes the context (such as autocast) to recompute in; the forward's own context has ended by then.
    """

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), again()

    for _, layer in decoder_layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)


def published(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield weights and persistent buffers by name, each tensor once (tied ones under their first name)."""
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
    """Copy weights into a model; `check_published` has checked them."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
