"""What is read of a model's folder: regular files in it, and nothing that a link there leads to elsewhere.

A model comes from anybody. A link `tokenizer.json -> /proc/self/environ` would have its reader open that, and a
checkpoint that takes the file over would publish it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rljob_core.errors import RLJobError, SpecError
from rljob_core.remote_uri import unsafe_weights
from rljob_runtime.storage.plain_files import read_plain

_READ = (".json", ".safetensors", ".jinja", ".model", ".txt", ".tiktoken")
_LARGEST_SETTINGS = 512 << 20
"""Bytes of a JSON file of a model; the tokenizer of a large vocabulary has 30 MB."""
_TAKEN_OVER = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template"
    r"|preprocessor_config|processor_config)\.json|chat_template\.jinja|(merges|vocab)\.txt"
    r"|(tokenizer|spiece|sentencepiece(\.bpe)?)\.model|[\w-]+\.tiktoken|(LICENSE|NOTICE)(\.(txt|md))?",
    re.ASCII,
)


def check_inside(folder: Path) -> None:
    """Check that the files that are read of a model's folder are regular files of it.

    Raises:
        SpecError: one is a link to elsewhere, a FIFO or a device.
    """
    if not folder.is_dir():
        return
    for path in sorted((*folder.iterdir(), *(folder / "additional_chat_templates").glob("*"))):
        if path.name.endswith(_READ) and path.exists() and not path.is_dir() and not _is_inside(path, folder):
            raise SpecError("spec.model.uri", f"{path} is no file of the model's folder: copy the file there")


def files_taken_over(folder: Path) -> Iterator[Path]:
    """What a checkpoint or an export takes over from a model's folder: settings, tokenizer, licence; sorted by name."""
    for path in sorted(folder.iterdir()):
        if _TAKEN_OVER.fullmatch(path.name) and _is_inside(path, folder):
            yield path


def without_safetensors(folder: Path) -> SpecError:
    """The error for a folder whose weights, if there are any, are no safetensors."""
    pickles = sorted(unsafe_weights(path.name for path in folder.iterdir()))
    why = f", but {pickles[0]}, a pickle, which could run any code when it is loaded" if pickles else ""
    return SpecError(
        "spec.model.uri",
        f"{folder} holds no safetensors files{why}: save the model with transformers' save_pretrained",
    )


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a regular file in a folder, links followed.

    The cache of huggingface_hub has files as links, `snapshots/<commit>/config.json -> ../../blobs/<digest>`.
    """
    home, found = (Path(os.path.realpath(one)) for one in (folder, path))
    blobs = home.parents[1] / "blobs" if home.parent.name == "snapshots" else home
    return found.is_file() and (found.is_relative_to(home) or found.parent == blobs)


def read_settings(file: Path) -> Mapping[str, Any]:
    """Read a JSON object from a file in a model's folder.

    Raises:
        SpecError: the file is missing, cannot be read, or holds something else.
    """
    try:
        value = json.loads(read_plain(file, limit=_LARGEST_SETTINGS))
    except FileNotFoundError as error:
        raise SpecError(
            "spec.model.uri", f"{file.parent} holds no Hugging Face model: {file.name} is missing"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError("spec.model.uri", f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SpecError("spec.model.uri", f"{file} holds no settings")
    return value


@contextmanager
def understood(file: Path) -> Iterator[None]:
    """Turn what the block stumbles over, as settings in a file may be of any kind, into an error of the file.

    Raises:
        SpecError: the block has raised no error of ours.
    """
    try:
        yield
    except (RLJobError, OSError, MemoryError):
        raise
    except Exception as error:
        raise SpecError(
            "spec.model.uri", f"{file} holds other settings than a model's ({type(error).__name__}: {error})"
        ) from error
