"""Reads a model's sizes, files and tensor shapes from its Hugging Face folder, without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError
from rljob_runtime.model.folder_files import check_inside, read_settings, understood

#: Positions of a model whose settings give no limit.
_UNBOUNDED = 1 << 20
_LARGEST_HEADER = 100_000_000
"""Bytes of the header of a safetensors file, as the library has it."""

LOADING = ("torch", "transformers", "rljob_runtime.model.causal")
"""What loading a model imports, in pieces: who imports ahead can do something else between two of them."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Sizes of a causal language model.

    Attributes:
        folder: the model's folder.
        architecture: the class that `config.json` names, or its model type.
        heads: number of attention heads; 0 if `config.json` does not say.
        key_heads: number of heads of keys and values; 0 likewise.
        vocabulary: number of token ids that it has embeddings for.
        context: number of positions.
        tied: whether input and output embeddings are one tensor.
        dtype: of its weights, by torch's name.
    """

    folder: Path
    architecture: str
    heads: int
    key_heads: int
    vocabulary: int
    context: int
    tied: bool
    dtype: str


def model_settings(folder: Path) -> ModelSettings:
    """Read the settings of the model in a folder.

    Raises:
        SpecError: its `config.json` is missing, cannot be read, or lacks a size.
    """
    check_inside(folder)
    whole = read_settings(folder / "config.json")
    with understood(folder / "config.json"):
        return _sizes(folder, whole)


def _sizes(folder: Path, whole: Mapping[str, Any]) -> ModelSettings:
    # A model of several modalities has separate settings for the part that writes text.
    text = whole.get("text_config")
    settings = text if isinstance(text, dict) else whole

    def size(*names: str) -> int:
        return next((n for n in map(settings.get, names) if isinstance(n, int) and n > 0), 0)

    vocabulary = size("vocab_size")
    if not vocabulary:
        raise _wrong(f"{folder / 'config.json'} gives no vocab_size: save the model there with transformers")
    architectures = whole.get("architectures") or [whole.get("model_type", "unknown")]
    return ModelSettings(
        folder=folder,
        architecture=str(architectures[0]),
        # The second names are those of GPT-2 and similar models.
        heads=size("num_attention_heads", "n_head"),
        key_heads=size("num_key_value_heads", "num_attention_heads", "n_head"),
        vocabulary=vocabulary,
        context=size("max_position_embeddings", "n_positions") or _UNBOUNDED,
        tied=bool(whole.get("tie_word_embeddings", settings.get("tie_word_embeddings", False))),
        # The older name is `torch_dtype`; without either, transformers loads torch's default dtype.
        dtype=str(settings.get("dtype") or settings.get("torch_dtype") or whole.get("dtype") or "float32"),
    )


def check_tokenizer(model: ModelSettings) -> None:
    """Check that every token of the tokenizer has an embedding.

    Some tokenizers are shared with a larger model and have special tokens that this one lacks, for images for example.
    Those are checked only if they have a role, or the chat template writes them.

    Raises:
        SpecError: the tokenizer has tokens that the model lacks, or cannot be read.
    """
    file = model.folder / "tokenizer.json"
    if not file.is_file():
        return  # a job that needs a tokenizer fails where it loads it
    with understood(file):
        _check_embedded(model, read_settings(file))


def _check_embedded(model: ModelSettings, settings: Mapping[str, Any]) -> None:
    added = settings.get("added_tokens") or ()
    special = {token["id"]: str(token["content"]) for token in added if token.get("special")}
    vocabulary = (settings.get("model") or {}).get("vocab") or {}
    # A unigram model lists its tokens; all other models map them to ids.
    known = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    ids = {*known, *(token["id"] for token in added)}
    beyond = [number for number in ids if number >= model.vocabulary]
    if beyond and special.keys() >= set(beyond):
        from rljob_runtime.model.tokenizer import Tokenizer

        tokenizer = Tokenizer(model.folder)
        beyond = [number for number in beyond if tokenizer.uses(special[number])]
    if beyond:
        raise _wrong(
            f"the tokenizer in {model.folder} writes token ids up to {max(beyond)}, but the model has embeddings for 0 "
            f"to {model.vocabulary - 1}: resize them, or put the tokenizer there that the model was trained with"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold a model's weights, sorted; empty if there are none.

    A folder may hold a second set under other names, such as Mistral's `consolidated.safetensors`. This function
    chooses as transformers does, because that set is trained: `model.safetensors`, or the files that its index names.
    Without either it returns all safetensors files.

    Raises:
        SpecError: the index cannot be read, or names a file that is missing.
    """
    check_inside(folder)
    whole = folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    named = read_settings(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise _wrong(f"{index} holds no weight_map from tensors to files")
    if outside := [name for name in named.values() if "/" in name or not name.endswith(".safetensors")]:
        raise _wrong(
            f"{index} names {outside[0]!r}, which is no safetensors file of the folder: put the file there"
        )
    files = sorted({folder / name for name in named.values()})
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise _wrong(f"{index} names {missing[0]}, which is missing, as are {len(missing) - 1} others")
    return files


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors in a model's `weight_files`; empty if it has none.

    A file starts with eight bytes, the header's length (little-endian), and the header as JSON.

    Raises:
        SpecError: a file cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        try:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                if length > _LARGEST_HEADER:
                    raise ValueError(f"its header has {length:,} bytes")
                header = json.loads(stream.read(length))
            shapes.update(
                (name, tuple(entry["shape"])) for name, entry in header.items() if name != "__metadata__"
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _wrong(f"{file} cannot be read: {error}") from error
    return shapes


_BESIDE = ("adapter", "optimizer-")
"""First parts of the names of files that are no weights of a model: adapters, and the state in our checkpoints."""


def check_whole(folder: Path) -> None:
    """Check that a folder holds a model and no adapter, which transformers would add to it.

    Raises:
        SpecError: it holds an adapter; if it holds nothing else, the error names its base model and says how to merge.
    """
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        return
    if any(not f.name.startswith(_BESIDE) for f in folder.glob("*.safetensors")):
        raise _wrong(
            f"{adapter} is of an adapter beside the model, which would be added to it: remove the file"
        )
    base = read_settings(adapter).get("base_model_name_or_path") or "its base model"
    raise _wrong(
        f"{folder} holds an adapter of {base} only: write {base} here, or merge both into another folder: "
        f"`rljob export {folder} TARGET`, or peft's "
        f'AutoPeftModelForCausalLM.from_pretrained("{folder}").merge_and_unload().save_pretrained(…), with the '
        "tokenizer's files beside it"
    )


def _wrong(message: str) -> SpecError:
    return SpecError("spec.model.uri", message)
