"""The folder of a model that a user names: a model's, a checkpoint's, or that of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError
from rljob_runtime.model.export import has_adapters
from rljob_runtime.storage.objects import is_object_store

_NONE = "this run has written no checkpoint yet"


@contextmanager
def checkpoint_folder(path: Path) -> Iterator[Path]:
    """The folder with the weights, while the context lasts: of a run, its newest checkpoint.

    Raises:
        SpecError: there is none.
        StoreUnavailable: the object store of the run's checkpoints does not answer.
    """
    if not path.is_dir():
        raise SpecError(
            str(path), "there is no such folder: give a model, a checkpoint or the folder of a run"
        )
    folder = RunFolder(path)
    if (path / "config.json").is_file() or has_adapters(path):
        yield path
    elif (identity := folder.identity()) is not None:
        uri = folder.checkpoints_uri(identity)
        if is_object_store(uri):
            from rljob_runtime.training.checkpoints import open_checkpoints

            checkpoints = open_checkpoints(uri, model_path=Path())
            if not (keys := checkpoints.keys()):
                raise SpecError(str(path), _NONE)
            with checkpoints.local(keys[-1]) as copy:
                yield copy
            return
        if not folder.checkpoint.is_dir():
            raise SpecError(str(path), _NONE)
        yield folder.checkpoint.resolve()
    elif (latest := path / "latest").is_dir():  # the folder of checkpoints, as on a cluster's claim
        yield latest.resolve()
    else:
        raise SpecError(
            str(path), "holds no model: there is neither config.json nor adapter_config.json in it"
        )
