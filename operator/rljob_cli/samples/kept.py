"""The samples of a run's folder, or of a job as a pod sees it; and why there are none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_cli.cluster_job import job_config
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.errors import SpecError

if TYPE_CHECKING:  # it needs pyarrow, which a slim install lacks
    from rljob_runtime.samples.read import SampleReader

_ELSEWHERE = (
    "is where the job's pods keep its samples, on a claim that this machine does not have: where the claim is mounted "
    "here, too, give --storage CLAIM=FOLDER"
)


def kept_samples(run: Path) -> SampleReader:
    """The reader of a run's samples.

    Args:
        run: the output folder, or the configuration of a job's workers.

    Raises:
        SpecError: it is neither, or pyarrow is missing.
        StoreUnavailable: the samples cannot be read.
    """
    try:
        from rljob_runtime.samples.places import open_samples
        from rljob_runtime.samples.read import SampleReader
        from rljob_runtime.samples.trained import TrainedLog
    except ImportError as error:
        raise SpecError("", f"samples need pyarrow: run pip install 'rljob[data]' ({error})") from error
    folder = RunFolder(run)
    if _is_mirror(folder):
        run = folder.workers_config
    if run.is_file():
        config = job_config(run)
        uri, log, job = config.samples_uri, config.trainer_log_uri, config.uid
        if not uri:
            raise SpecError(config.job, "keeps no samples: raise spec.samples.keepBytes")
        if "://" not in uri and not Path(uri).parent.is_dir():
            raise SpecError(uri, _ELSEWHERE)
    else:
        if not folder.path.is_dir():
            raise SpecError(str(run), "does not exist: give the output folder of a run")
        if not folder.samples.is_dir() and not folder.job.is_file():
            raise SpecError(str(run), "is not an output folder of rljob run: it has no job.json")
        identity = _identity(folder)
        job = identity.uid if identity is not None else ""
        uri, log = str(folder.samples), str(folder.trainer)
        if identity is not None:
            uri, log = folder.samples_uri(identity), folder.trainer_log_uri(identity)
    return SampleReader(open_samples(uri), TrainedLog.at(log), job)


def _is_mirror(folder: RunFolder) -> bool:
    identity = _identity(folder)
    return identity is not None and identity.mirrors


def why_none(run: Path) -> str:
    """Why a run's folder has no samples."""
    identity = _identity(RunFolder(run))
    if run.is_file() or identity is None or identity.mirrors:
        return f"{run}: no samples yet: they come with the first scores"
    spec = identity.manifest.get("spec")
    kept = spec.get("samples") if isinstance(spec, dict) else None
    if isinstance(kept, dict) and not kept.get("keepBytes"):
        return f"{run}: no samples: spec.samples.keepBytes is 0"
    return (
        f"{run}: no samples yet: they come with the first scores; if the job has steps already, "
        "logs/*-reward-*.log says why none are stored"
    )


def _identity(folder: RunFolder) -> Identity | None:
    """The job that the folder belongs to; None if its file is missing or damaged: samples are shown all the same."""
    try:
        return folder.identity()
    except SpecError:
        return None
