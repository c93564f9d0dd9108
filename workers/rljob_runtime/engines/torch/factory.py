"""The factory and the checks of the engine `Torch`; importing it loads no torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.engines.factory import NAME, EngineFactory, check_length
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.torch.options import TorchEngineOptions
from rljob_runtime.model.settings import LOADING, ModelSettings, check_tokenizer


def check_fit(model: ModelSettings, options: TorchEngineOptions) -> None:
    """Check that the engine `Torch` can serve the model.

    Raises:
        SpecError: it cannot, or PyTorch is not installed.
    """
    check_tokenizer(model)
    check_length(model, options.max_length)
    if find_spec("torch") is None:
        raise SpecError(NAME, "the engine Torch needs PyTorch: install rljob[torch]")


def _create(model_path: Path, *, options: TorchEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.torch.engine import TorchEngine

    return TorchEngine(model_path, options=options, decode=decode)


TORCH = EngineFactory(
    _create,
    TorchEngineOptions,
    reads_weights=True,
    check_fit=check_fit,
    is_paced=True,
    preload=(*LOADING, "rljob_runtime.engines.torch.engine"),
)
