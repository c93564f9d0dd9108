"""Which files of a repository or a prefix are downloaded, and how safe they are."""

from __future__ import annotations

from fnmatch import fnmatchcase

from rljob_core.errors import SpecError
from rljob_core.remote_uri import leaves_folder, unsafe_weights
from rljob_runtime.downloads.remote_file import RemoteFile

_OF_MODEL = (".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken")
_TEMPLATES = "additional_chat_templates/"
_ENDINGS = {"jsonl": (".jsonl", ".json"), "parquet": (".parquet",)}


def model_files(files: tuple[RemoteFile, ...], *, field: str) -> tuple[RemoteFile, ...]:
    """The files of a model: its weights as safetensors, its settings and its tokenizer; no code and no pickle.

    Args:
        files: all.
        field: the manifest's field that names the model, for errors.

    Raises:
        SpecError: it has no settings, or its weights are pickles only; or names lead out of the folder.
    """
    _check_names(files, field)
    names = [file.name for file in files]
    if "config.json" not in names and "adapter_config.json" in names:
        raise SpecError(
            field,
            "holds adapters only: merge them (`rljob export CHECKPOINT TARGET`) and name the merged model",
        )
    if "config.json" not in names:
        raise SpecError(field, "holds no Hugging Face model (config.json is missing): name a model's folder")
    own = [
        file
        for file in files
        if "/" not in file.name.removeprefix(_TEMPLATES) and file.name.endswith(_OF_MODEL)
    ]
    tensors = [file.name for file in own if file.name.endswith(".safetensors")]
    if not tensors and (pickles := unsafe_weights(names)):
        raise SpecError(
            field,
            f"holds its weights in {pickles[0]}, a pickle, which could run any code when it is loaded: choose a "
            "revision or another model with *.safetensors, or convert it with transformers' save_pretrained",
        )
    # Some models have the same weights twice: for transformers, and for the program of those who have made them.
    if any(not name.startswith("consolidated") for name in tensors):
        own = [file for file in own if not file.name.startswith("consolidated")]
    return tuple(own)


def without_weights(files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
    """Of a model's files, its settings and its tokenizer."""
    return tuple(file for file in files if not file.name.endswith(".safetensors"))


def data_files(
    files: tuple[RemoteFile, ...], *, path: str, source: str, field: str
) -> tuple[RemoteFile, ...]:
    """The files of a data set.

    Args:
        files: all.
        path: of a file or a folder among them, or a pattern; empty: all.
        source: `jsonl` or `parquet`.
        field: the manifest's field that names them, for errors.

    Raises:
        SpecError: there are none, or their names lead out of the folder.
    """
    _check_names(files, field)
    endings = _ENDINGS[source]
    chosen = tuple(
        file
        for file in files
        if file.name == path
        or (file.name.endswith(endings) and (_below(file.name, path) or fnmatchcase(file.name, path)))
    )
    if not chosen:
        some = ", ".join(file.name for file in files[:8]) or "no files"
        raise SpecError(field, f"no file {path or '*'} that ends in {endings[0]} is there, but {some}")
    return chosen


def _below(name: str, folder: str) -> bool:
    return not folder or name.startswith(f"{folder.rstrip('/')}/")


def _check_names(files: tuple[RemoteFile, ...], field: str) -> None:
    for file in files:
        if leaves_folder(file.name):
            raise SpecError(
                field, f"lists a file {file.name!r}, which is no path below its folder: do not use it"
            )
        if file.size < 0:
            raise SpecError(field, f"lists a file {file.name!r} of {file.size} bytes: do not use it")
