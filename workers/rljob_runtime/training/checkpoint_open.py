"""Opens a job's checkpoints: in a folder, or in an object store."""

from __future__ import annotations

from pathlib import Path

from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.training.checkpoint_base import Checkpoints
from rljob_runtime.training.checkpoint_objects import ObjectCheckpoints
from rljob_runtime.training.checkpoints import CheckpointStore


def open_checkpoints(uri: str, *, model_path: Path) -> Checkpoints:
    """Open the checkpoints at a path or URI (`file://`, `s3://`, `gs://`); made when first written to.

    Args:
        uri: the path or URI.
        model_path: folder of the initial model: its identity, its tokenizer.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """
    if is_object_store(uri):
        return ObjectCheckpoints(uri, model_path=model_path)
    return CheckpointStore(uri, model_path=model_path)
