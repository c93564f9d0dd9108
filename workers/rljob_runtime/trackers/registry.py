"""The trackers by the names that `spec.trackers[].name` uses; looking one up loads none of their packages.

| name | package | without a network |
|---|---|---|
| `WandB` | `wandb` | with `mode: offline` |
| `MLflow` | `mlflow` or `mlflow-skinny` | in an SQLite file |
| `TensorBoard` | `tensorboard` | event files |
| `Trackio` | `trackio` | in its own SQLite file |

Any other name is one that an installed distribution offers (`rljob_runtime.plugins`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Self

from rljob_core import worker_protocol
from rljob_core.errors import ResourceMissing, SpecError
from rljob_core.ports import TrackedRun, Tracker
from rljob_core.spec import TrackerSpec
from rljob_core.words import exit_in_words, shell_code
from rljob_runtime.plugins import Factory, Registry
from rljob_runtime.trackers.options import MlflowOptions, TensorboardOptions, TrackioOptions, WandbOptions


@dataclass(frozen=True, slots=True)
class TrackerFactory(Factory[Tracker]):
    """Opens runs in one kind of tracker.

    Attributes:
        missing: what has to be installed for it, as a pip requirement; empty if nothing has.
    """

    missing: Callable[[], str] = lambda: ""

    @classmethod
    def of(cls, offered: object) -> Self:
        """A factory from what an entry point refers to, which may say what is `missing`."""
        made = super(TrackerFactory, cls).of(offered)
        return replace(made, missing=getattr(offered, "missing", made.missing))


def _needs(*modules: str, extra: str) -> Callable[[], str]:
    """Names the extra if one of the modules is not installed, in the environment of the trackers."""

    def missing() -> str:
        python = os.environ.get(worker_protocol.TRACKER_PYTHON)
        if python:
            installed = _are_installed(python, ("rljob_runtime", *modules))
        else:
            installed = all(find_spec(module) is not None for module in modules)
        return "" if installed else f"rljob[{extra}]"

    return missing


def _are_installed(python: str, modules: Sequence[str]) -> bool:
    """Whether the environment of a Python has all of these modules.

    Raises:
        SpecError: there is no Python at that path.
    """
    try:
        done = subprocess.run([python, "-c", _FIND, *modules], capture_output=True, check=False)
        why = "" if done.returncode in (0, 1) else exit_in_words(shell_code(done.returncode))
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise SpecError(
            worker_protocol.TRACKER_PYTHON,
            f"{python} does not start as a Python ({why}): name the python of an environment that has rljob[trackers], "
            "or unset the variable",
        )
    return done.returncode == 0


_FIND = "import sys, importlib.util as u; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"


def _wandb(run: TrackedRun, *, options: WandbOptions) -> Tracker:
    from rljob_runtime.trackers.wandb_tracker import WandbTracker

    return WandbTracker(run, options)


def _mlflow(run: TrackedRun, *, options: MlflowOptions) -> Tracker:
    from rljob_runtime.trackers.mlflow_tracker import MlflowTracker

    return MlflowTracker(run, options)


def _tensorboard(run: TrackedRun, *, options: TensorboardOptions) -> Tracker:
    from rljob_runtime.trackers.tensorboard_tracker import TensorboardTracker

    return TensorboardTracker(run, options)


def _trackio(run: TrackedRun, *, options: TrackioOptions) -> Tracker:
    from rljob_runtime.trackers.trackio_tracker import TrackioTracker

    return TrackioTracker(run, options)


TRACKERS = Registry[TrackerFactory](
    "tracker",
    "rljob.trackers",
    {
        "WandB": TrackerFactory(_wandb, WandbOptions, missing=_needs("wandb", extra="wandb")),
        "MLflow": TrackerFactory(
            _mlflow, MlflowOptions, missing=_needs("mlflow", "sqlalchemy", extra="mlflow")
        ),
        "TensorBoard": TrackerFactory(
            _tensorboard, TensorboardOptions, missing=_needs("tensorboard", extra="tensorboard")
        ),
        "Trackio": TrackerFactory(_trackio, TrackioOptions, missing=_needs("trackio", extra="trackio")),
    },
    TrackerFactory.of,
)


def check_tracker(spec: TrackerSpec, *, path: str) -> Any:
    """A tracker's options, as its own model of them (a dict, if it has none); loads none of our trackers.

    Args:
        spec: of the tracker.
        path: its place in the manifest, for messages: `spec.trackers[0]`.

    Raises:
        SpecError: no tracker has that name, it does not load, or it has no such option.
            Or the environment names a Python for trackers that is none.
        ResourceMissing: its package is not installed.
    """
    factory = TRACKERS.find(spec.name, field=f"{path}.name")
    checked = factory.check(spec.options, field=f"{path}.options", whose=f"tracker {spec.name}")
    if missing := factory.missing():
        raise ResourceMissing(
            f"{path}.name",
            f"the package of the tracker {spec.name} is not installed: pip install '{missing}', or remove the tracker",
        )
    return checked


def create_tracker(spec: TrackerSpec, run: TrackedRun, *, path: str) -> Tracker:
    """Open the run of a job in a tracker, or continue it.

    Args:
        spec: of the tracker.
        run: the job.
        path: see `check_tracker`.

    Raises:
        SpecError: as `check_tracker`. A tracker's own package may raise anything.
    """
    options = check_tracker(spec, path=path)
    return TRACKERS.find(spec.name, field=f"{path}.name").create(run, options=options)
