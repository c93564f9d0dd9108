"""What `rljob check-…` tests a plugin with: a model, its weights, and the settings that the user gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rljob_cli.exits import scratch_folder
from rljob_cli.manifest.load import InvalidManifest, override
from rljob_core.advice import advice, dotted, location
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJobSpec


@contextmanager
def model_or_tiny(given: Path | None) -> Iterator[Path]:
    """Yield the folder of the given model, or of a tiny model that is created for the check."""
    with ExitStack() as held:
        if given is None:
            from rljob_contract.tiny_models import tiny_model

            place = held.enter_context(scratch_folder())
            # Heads of 32 numbers, as few as any engine can compute with.
            yield tiny_model(place / "model", hidden=128, context=4096)
            return
        if not (given / "config.json").is_file():
            raise SpecError("--model", f"{given} holds no Hugging Face model (config.json is missing)")
        yield given


def config_of(model: Path, **sections: dict[str, Any]) -> JobConfig:
    """Create the configuration of a job that has these sections in its spec.

    Raises:
        InvalidManifest: a field is wrong.
    """
    from rljob_contract.samples import job_config

    try:
        return job_config(model, **sections)
    except ValidationError as error:
        raise InvalidManifest(
            "the settings are wrong",
            [
                SpecError(f"spec.{dotted(location(detail))}", advice(RLJobSpec, sections, detail))
                for detail in error.errors(include_url=False)
            ],
        ) from error


def parse_settings(settings: Sequence[str], path: str) -> dict[str, Any]:
    """Parse `--set name=value` options as content of the field at `path`."""
    content: dict[str, Any] = {}
    for text in settings:
        if not text.partition("=")[1]:
            raise SpecError("--set", f"{text!r}: write name=value, for instance slots=4")
        override(content, f"{path}.{text}")
    for step in path.split("."):
        content = content.get(step, {})
    return content


def initial_weights(folder: Path, backend: str | None) -> Callable[[], list[tuple[str, Any]]]:
    """Return a reader of the initial weights, under the names of the backend or else of the model's files."""
    if backend is not None:
        from rljob_contract.backend_steps import stored, weights
        from rljob_runtime.training.registry import create_backend

        config = config_of(folder, trainer={"backend": backend})
        held = weights(create_backend(config, rank=0, world_size=1, model_path=folder))
        return lambda: stored(held)
    from rljob_runtime.model.settings import weight_files

    files = weight_files(folder)
    if not files:
        raise SpecError(
            "--model", f"{folder} holds no *.safetensors: name the --backend that publishes the weights"
        )

    def read() -> list[tuple[str, Any]]:
        from safetensors.torch import load_file

        return [item for file in files for item in load_file(file).items()]

    return read


def longest_response(folder: Path, options: dict[str, Any]) -> int:
    """Return how many tokens a response may have so that it and a prompt fit the model and the engine's `maxLength`."""
    from rljob_runtime.model.folder_files import read_settings

    settings = read_settings(folder / "config.json")
    bounds = [settings.get("max_position_embeddings"), options.get("maxLength")]
    return min([3000, *(bound - 100 for bound in bounds if isinstance(bound, int))])
