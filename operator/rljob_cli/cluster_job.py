"""A job on a cluster, as a pod that runs one command on it sees it: its configuration, and its manifest."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import API_VERSION, RLJob


def job_config(path: Path) -> JobConfig:
    """The configuration of a job, from the file that its workers load.

    Raises:
        SpecError: the file is no such configuration.
    """
    try:
        return JobConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise SpecError(
            str(path), "is not the configuration of a job: give the output folder of a run"
        ) from error


def manifest_of(config: JobConfig) -> RLJob:
    """The RLJob that a configuration is of, with the paths that its pods see."""
    return RLJob.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "metadata": {"name": config.job, "namespace": config.namespace},
            "spec": config.spec,
        }
    )
