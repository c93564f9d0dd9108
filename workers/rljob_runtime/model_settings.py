"""What a model's folder says about the model, read without loading it (nor torch, nor transformers)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError

#: Context of a model that names none.
_UNBOUNDED = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Sizes of a causal language model.

    Attributes:
        folder: where it lies.
        architecture: the class that `config.json` names, or its model type.
        heads: attention heads.
        key_heads: heads of keys and values.
        hidden: size of the hidden state.
        layers: decoder layers.
        vocabulary: token ids that it has embeddings for.
        context: positions.
        tied: whether input and output embeddings are one tensor.
        dtype: of its weights, as torch calls it.
    """

    folder: Path
    architecture: str
    heads: int
    key_heads: int
    hidden: int
    layers: int
    vocabulary: int
    context: int
    tied: bool
    dtype: str


def model_settings(folder: Path) -> ModelSettings:
    """The settings of the model in a folder.

    Raises:
        SpecError: its `config.json` is missing, does not read, or lacks a size.
    """
    whole = _read(folder / "config.json")
    # Of a model of several modalities, the one that writes text.
    text = whole.get("text_config")
    settings = text if isinstance(text, dict) else whole

    def size(name: str) -> int:
        value = settings.get(name)
        if not isinstance(value, int) or value < 1:
            raise _wrong(f"{folder / 'config.json'} gives no {name}: save the model there with transformers")
        return value

    heads = size("num_attention_heads")
    key_heads = settings.get("num_key_value_heads")
    architectures = whole.get("architectures") or [whole.get("model_type", "unknown")]
    return ModelSettings(
        folder=folder,
        architecture=str(architectures[0]),
        heads=heads,
        key_heads=key_heads if isinstance(key_heads, int) else heads,
        hidden=size("hidden_size"),
        layers=size("num_hidden_layers"),
        vocabulary=size("vocab_size"),
        context=settings.get("max_position_embeddings") or _UNBOUNDED,
        tied=bool(whole.get("tie_word_embeddings", settings.get("tie_word_embeddings", False))),
        # The older name is `torch_dtype`; a model that says nothing has what torch makes by itself.
        dtype=str(settings.get("dtype") or settings.get("torch_dtype") or whole.get("dtype") or "float32"),
    )


def check_tokenizer(model: ModelSettings) -> None:
    """Whether every token that the tokenizer can write has an embedding.

    Raises:
        SpecError: it has more tokens than the model, or does not read.
    """
    file = model.folder / "tokenizer.json"
    if not file.is_file():
        return  # who needs one says so
    settings = _read(file)
    ids = [token["id"] for token in settings.get("added_tokens") or ()]
    vocabulary = (settings.get("model") or {}).get("vocab") or {}
    # A unigram model lists its pieces; all others map them to ids.
    ids += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    largest = max(ids, default=0)
    if largest >= model.vocabulary:
        raise _wrong(
            f"the tokenizer in {model.folder} writes token ids up to {largest}, but the model has embeddings for 0 "
            f"to {model.vocabulary - 1}: resize them, or put the tokenizer there that the model was trained with"
        )


def check_length(model: ModelSettings, length: int | None) -> None:
    """Whether the model's context holds prompts and responses of so many tokens together.

    Raises:
        SpecError: it does not.
    """
    if length is not None and length > model.context:
        raise SpecError(
            "spec.rollout.engine.options.maxLength",
            f"{length} is beyond the model's context of {model.context} tokens: write at most {model.context}",
        )


def check_tensor_parallel(model: ModelSettings, size: int) -> None:
    """Whether a layer's heads can be split among so many devices.

    Raises:
        SpecError: they cannot.
    """
    # Fewer heads of keys than devices are copied, if each device then gets a whole one.
    uneven = model.heads % size or (model.key_heads % size and size % model.key_heads)
    if uneven:
        fitting = [n for n in range(1, model.heads + 1) if not model.heads % n and not model.key_heads % n]
        raise SpecError(
            "spec.rollout.engine.options.tensorParallelSize",
            f"{size} does not divide the model's {model.heads} attention heads ({model.key_heads} of keys and values): "
            f"write one of {', '.join(map(str, fitting))}",
        )


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a folder's safetensors files; empty if it has none.

    The format: eight bytes with the header's length, little-endian, then the header as JSON.

    Raises:
        SpecError: a file does not read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            shapes.update(
                (name, tuple(entry["shape"])) for name, entry in header.items() if name != "__metadata__"
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _wrong(f"{file} does not read: {error}") from error
    return shapes


def _read(file: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise _wrong(
            f"{file.parent} holds no Hugging Face model: {file.name} is missing; name a model's folder"
        ) from error
    except (OSError, ValueError) as error:
        raise _wrong(f"{file} does not read: {error}") from error
    if not isinstance(value, dict):
        raise _wrong(f"{file} holds no settings")
    return value


def _wrong(message: str) -> SpecError:
    return SpecError("spec.model.uri", message)
