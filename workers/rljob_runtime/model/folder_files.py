"""What is read of a model's folder: regular files in it, and nothing that a link there leads to elsewhere.

A model comes from anybody. A link `tokenizer.json -> /proc/self/environ` would have its reader open that, and a
checkpoint that takes the file over would publish it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rljob_core.errors import SpecError
from rljob_core.remote_uri import unsafe_weights

_READ = (".json", ".safetensors", ".jinja", ".model", ".txt", ".tiktoken")
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
