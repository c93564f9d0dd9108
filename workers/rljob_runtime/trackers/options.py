"""The options of the trackers; loads none of their packages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_core.errors import SpecError
from rljob_core.ports import TrackedRun
from rljob_runtime.plugins import StrictOptions

OptionText = Annotated[str, Field(min_length=1, max_length=1024)]


class TrackerOptions(StrictOptions):
    """Options of a tracker: unknown fields and wrong types are errors, and manifests write the names in camelCase."""

    directory: OptionText | None = None
    """Folder of the tracker's files: a path, or pvc://claim/folder."""


class WandbOptions(TrackerOptions):
    """What options the tracker `WandB` takes."""

    mode: Literal["online", "offline"] | None = None
    """offline: into files, which `wandb sync` sends later; absent: what WANDB_MODE says, else online."""
    project: OptionText = "rljob"
    """The project of the run."""
    entity: OptionText | None = None
    """User or team; absent: the one of the API key."""
    group: OptionText | None = None
    """Name of a group of runs."""
    tags: list[OptionText] = Field(default=[], max_length=32)
    """Tags of the run."""


class MlflowOptions(TrackerOptions):
    """What options the tracker `MLflow` takes."""

    tracking_uri: OptionText | None = None
    """The server or store; absent: what MLFLOW_TRACKING_URI says, else an SQLite file in `directory`."""
    experiment: OptionText = "rljob"
    """The experiment of the run; it is created if it does not exist."""


class TensorboardOptions(TrackerOptions):
    """What options the tracker `TensorBoard` takes."""


class TrackioOptions(TrackerOptions):
    """What options the tracker `Trackio` takes."""

    project: OptionText = "rljob"
    """The project of the run."""


def folder_of(run: TrackedRun, directory: str | None) -> str:
    """The folder of a tracker's files: the one that its options name, or the run's.

    Raises:
        SpecError: neither names one.
    """
    if directory is None and not run.folder:
        raise SpecError(
            "options.directory",
            "is needed on a cluster: write a folder that lasts, such as pvc://claim/folder",
        )
    return directory or run.folder
