"""Checks of a run's output folder, before anything is written: is it free, or does it hold the job to be resumed?"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rljob_cli.manifest.differences import fixed_differences
from rljob_cli.manifest.load import InvalidManifest
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.errors import RLJobError, SpecError, StoreUnavailable
from rljob_core.spec import RLJob
from rljob_core.weight_transports import WeightTransportName
from rljob_runtime.locations import local_path

LEAST_FREE_BYTES = 64 << 20
"""With less free disk space a job is not started, and a running job is stopped while its state can still be saved."""


def check_claimable(folder: RunFolder, job: RLJob, *, resume: bool) -> Identity | None:
    """The part of `check_output` that needs no model, which may have to be downloaded first; returns the same.

    Raises:
        SpecError: the folder cannot be written, or does not hold what `resume` says.
    """
    check_writable(folder.path)
    identity = folder.identity()
    if identity is None:
        if resume:
            raise SpecError("--resume", f"{folder.path} holds no run: remove --resume to start one")
        check_empty(folder.path)
        check_unused(job)
        return None
    if (identity.namespace, identity.name) != (job.metadata.namespace, job.metadata.name):
        raise SpecError(
            "--output", f"{folder.path} holds another job, {identity.name}: choose another folder"
        )
    if not resume and not fixed_differences(identity.manifest, job):
        raise SpecError(
            "--output",
            f"{folder.path} holds a run of this job: add --resume to continue it, or choose another",
        )
    return identity


def check_output(
    folder: RunFolder,
    job: RLJob,
    *,
    resume: bool,
    model: str,
    from_version: int | None = None,
    downloads: Mapping[str, dict[str, str]] = MappingProxyType({}),
) -> Identity | None:
    """The job in the folder to resume; None for a new one.

    Args:
        model: identity of the job's initial model.
        from_version: the version that the user goes back to; this needs no ledger.
        downloads: where what the job downloads is now.

    Raises:
        SpecError: the folder cannot be written, or does not hold what `resume` says.
        InvalidManifest: it holds this job with settings that must stay as they were.
    """
    identity = check_claimable(folder, job, resume=resume)
    if identity is None:
        return None
    if identity.model != model:
        raise SpecError(
            "spec.model.uri",
            f"{folder.path} holds checkpoints of another model ({identity.manifest['spec']['model']['uri']}): choose "
            "another --output",
        )
    if changed := fixed_differences(identity.manifest, job):
        raise InvalidManifest(
            "the folder holds another job",
            [
                SpecError(
                    path,
                    f"{path.rpartition('.')[2]} is immutable, because {because}: change it back, or choose another "
                    f"--output; the job in {folder.path} was started with {json.dumps(before)}, not {json.dumps(now)}",
                )
                for path, because, before, now in changed
            ],
        )
    identity = replace(identity, downloads=dict(downloads))
    _check_resumable(folder, job, identity, needs_ledger=from_version is None)
    return identity


def _check_resumable(folder: RunFolder, job: RLJob, identity: Identity, *, needs_ledger: bool) -> None:
    nats_url = job.spec.nats.url or ""
    if identity.nats_url != nats_url:
        place = identity.nats_url or "the embedded server: remove it"
        raise SpecError("spec.nats.url", f"the streams of this job are on {place}")
    if needs_ledger and not nats_url and not any((folder.nats / "store").glob("jetstream/*")):
        from rljob_cli.job_checks.lost_ledger import way_on

        if (refusal := way_on(folder, identity.stamp(job))) is not None:
            raise refusal
    from rljob_runtime.training.checkpoints import open_checkpoints

    root = job.spec.trainer.checkpoint.uri or str(folder.checkpoints)
    model = local_path(identity.with_downloads(job).spec.model.uri, field="spec.model.uri")
    checkpoints = open_checkpoints(root, model_path=model)
    for key in checkpoints.keys():  # noqa: SIM118  no mapping
        try:
            checkpoints.verify_model(key)
        except SpecError:
            raise
        except RLJobError as error:
            raise SpecError("spec.trainer.checkpoint.uri", str(error)) from error


def check_unused(job: RLJob) -> None:
    """Check that the places outside of the folder that a new job names hold nothing yet.

    Raises:
        SpecError: one of them does; the error names its field.
    """
    for field, uri, holds_any in (
        ("spec.trainer.checkpoint.uri", job.spec.trainer.checkpoint.uri, _holds_checkpoints),
        ("spec.weights.uri", job.spec.weights.uri, partial(_holds_weights, job.spec.weights.transport)),
    ):
        if uri is not None and holds_any(uri, field):
            raise SpecError(field, f"{uri} holds what another job stored: choose an empty or a new folder")


def _holds_checkpoints(uri: str, field: str) -> bool:
    from rljob_runtime.training.checkpoints import open_checkpoints

    try:
        return open_checkpoints(uri, model_path=Path()).is_used()
    except StoreUnavailable as error:
        raise SpecError(field, str(error)) from error


def _holds_weights(transport_name: WeightTransportName, uri: str, field: str) -> bool:
    from rljob_runtime.weights.create import open_transport

    with closing(open_transport(transport_name, uri=uri)) as transport:
        try:
            return any(transport.manifest(key) is not None for key in transport.listing())
        except StoreUnavailable as error:
            raise SpecError(field, str(error)) from error


def check_empty(path: Path) -> None:
    """Check that an output folder does not exist, or is empty.

    Raises:
        SpecError: it holds files.
    """
    if path.is_dir() and (other := sorted(entry.name for entry in path.iterdir() if entry.name != ".lock")):
        some = ", ".join(other[:3]) + (", …" if len(other) > 3 else "")
        raise SpecError("--output", f"{path} holds other files ({some}): choose an empty or a new folder")


def check_writable(path: Path) -> None:
    """Check that an output folder can be written, or made.

    Raises:
        SpecError: it cannot, or its disk is full.
    """
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise SpecError("--output", f"{place} is a file: choose another folder")
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        raise SpecError("--output", f"{place} cannot be written: {error.strerror}") from error
    if free < LEAST_FREE_BYTES:
        raise SpecError(
            "--output", f"only {free >> 20} MB are free at {place}: free {LEAST_FREE_BYTES >> 20} MB"
        )
