"""Checks whether the engine `Torch` can serve a model, without loading the model or torch."""

from __future__ import annotations

from importlib.util import find_spec

from rljob_core.errors import SpecError
from rljob_runtime.engines.fit import NAME, check_length
from rljob_runtime.engines.torch.options import TorchEngineOptions
from rljob_runtime.model.settings import ModelSettings, check_tokenizer


def check_fit(model: ModelSettings, options: TorchEngineOptions) -> None:
    """Check that the engine `Torch` can serve the model.

    Raises:
        SpecError: it cannot, or PyTorch is not installed.
    """
    check_tokenizer(model)
    check_length(model, options.max_length)
    if find_spec("torch") is None:
        raise SpecError(NAME, "the engine Torch needs PyTorch: install rljob[torch]")
