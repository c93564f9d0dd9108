"""The trainer's own log as a folder, for those who read all of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_runtime.locations import local_path
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.trainer_log import TrainerLogCopy, TrainerLogObjects


@contextmanager
def trainer_log_folder(uri: str) -> Iterator[Path]:
    """The folder of a trainer's log, or a copy of one in an object store while the context lasts.

    Args:
        uri: `JobConfig.trainer_log_uri`.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
        StoreUnavailable: the store does not answer.
    """
    if not is_object_store(uri):
        yield local_path(uri)
        return
    with tempfile.TemporaryDirectory(prefix="rljob-trainer-log-") as folder:
        TrainerLogCopy(TrainerLogObjects(uri), Path(folder)).refresh()
        yield Path(folder)
