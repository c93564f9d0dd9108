"""Everything about a job that can be known before anything is started, beyond what its manifest's schema says.

Nothing is written and nothing is left behind; torch is not loaded.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from rljob_cli.manifest import InvalidManifest
from rljob_cli.run_folder import Identity, RunFolder, fixed_differences
from rljob_core.config import JobConfig
from rljob_core.errors import RLJobError, SpecError, StoreUnavailable
from rljob_core.spec import RLJob
from rljob_core.weight_transports import WeightTransportName
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.local import pod as local_pod
from rljob_runtime.locations import local_path

LEAST_FREE_BYTES = 64 << 20
"""Below this much free space a job is not started, and stopped while its state can still be saved."""
_NATS_PORT = 4222
_OPTIONS = "spec.rollout.engine.options"
#: Those that read the model's weights from its folder.
_COMPUTING = frozenset({"Torch", "vLLM"})
_TRAINING = frozenset({"Torch", "FSDP", "DeepSpeed"})


def check_job(config: JobConfig) -> None:
    """What the spec names exists and fits together.

    Raises:
        InvalidManifest: all that does not.
    """
    problems = _found(_NAMES, config)
    if not problems:  # what does not read, or is not there, cannot be compared
        problems = _found(_FITS, config)
    if not problems:  # nothing is asked that does not fit, or should not be sent
        problems = _found((_servers,), config)
    problems += _found(_REST, config)
    if problems:
        raise InvalidManifest("the job cannot run", problems)


def _found(checks: Sequence[Callable[[JobConfig], None]], config: JobConfig) -> list[SpecError]:
    return [problem for check in checks for problem in _caught(check, config)]


def _caught(check: Callable[[JobConfig], None], config: JobConfig) -> Iterator[SpecError]:
    try:
        check(config)
    except SpecError as error:
        yield error
    except InvalidManifest as errors:
        yield from errors.exceptions  # type: ignore[misc]


def _model(config: JobConfig) -> None:
    folder = local_path(config.spec.model.uri, field="spec.model.uri")
    if not folder.is_dir():
        raise _wrong_model(f"there is no folder {folder}: give the folder of a Hugging Face model")
    from rljob_runtime.model.settings import read_settings

    settings = read_settings(folder / "config.json")
    computes = config.spec.rollout.engine.name in _COMPUTING or config.spec.trainer.backend in _TRAINING
    architectures = settings.get("architectures") or []
    if computes and not any(str(name).endswith("ForCausalLM") for name in architectures):
        what = ", ".join(map(str, architectures)) or f"of type {settings.get('model_type', 'unknown')}"
        raise _wrong_model(
            f"{folder} holds no causal language model ({what}): its config.json must name a …ForCausalLM"
        )
    if computes and not any(folder.glob("*.safetensors")):
        raise _wrong_model(f"{folder} holds no weights: save them there as *.safetensors")
    from rljob_runtime.model.tokenizer import Tokenizer

    Tokenizer(folder)


def _wrong_model(message: str) -> SpecError:
    return SpecError("spec.model.uri", message)


def _engines(config: JobConfig) -> None:
    from rljob_runtime.engines.registry import check_engine

    _in_every_pool(config, lambda options: check_engine(config.spec.rollout.engine.name, options))


def _engines_fit(config: JobConfig) -> None:
    from rljob_runtime.engines.registry import check_fit

    name, sampling = config.spec.rollout.engine.name, config.spec.rollout.sampling
    folder = local_path(config.spec.model.uri)
    _in_every_pool(
        config,
        lambda options: check_fit(name, model_path=folder, options=options, max_tokens=sampling.max_tokens),
    )


def _servers(config: JobConfig) -> None:
    if config.spec.rollout.engine.name != "HTTP":
        return
    from rljob_runtime.engines.fit import shared_servers
    from rljob_runtime.engines.http.capabilities import glance
    from rljob_runtime.engines.registry import check_engine

    if problems := shared_servers(config):
        raise InvalidManifest("the engines would get into each other's way", problems)
    _in_every_pool(config, lambda options: asyncio.run(glance(check_engine("HTTP", options))))


def _in_every_pool(config: JobConfig, check: Callable[[Mapping[str, Any]], object]) -> None:
    """Check each pool's engine options.

    Raises:
        InvalidManifest: all that is wrong, each at the field where the pool has it from.
    """
    problems: dict[str, SpecError] = {}  # what all pools share is told once
    for number, pool in enumerate(config.spec.rollout.pools):
        try:
            check(config.engine_options(pool.name))
        except SpecError as error:
            path = error.path
            option = path.removeprefix(f"{_OPTIONS}.").partition(".")[0]
            if path.startswith(f"{_OPTIONS}.") and option in pool.engine.options:
                path = path.replace("spec.rollout.", f"spec.rollout.pools[{number}].", 1)
            problems.setdefault(path, SpecError(path, error.message))
    if problems:
        raise InvalidManifest("the engine cannot run", list(problems.values()))


def _backend(config: JobConfig) -> None:
    from rljob_runtime.training.registry import check_backend

    check_backend(config.spec)


def _adapters_fit(config: JobConfig) -> None:
    from rljob_runtime.training.registry import check_adapters

    check_adapters(config.spec, local_path(config.spec.model.uri))


def _data_and_rewards(config: JobConfig) -> None:
    from rljob_runtime.data.prompts import open_prompts
    from rljob_runtime.rewards.registry import resolve

    training, held_out = open_prompts(config)
    resolve(config.spec.reward.functions, training)
    resolve(config.spec.reward.functions, held_out)


def _runs_here(config: JobConfig) -> None:
    if config.spec.suspend:
        raise SpecError(
            "spec.suspend", "a suspended job does not run: remove it, or --set spec.suspend=false"
        )
    if not any(pool.initial_replicas for pool in config.spec.rollout.pools):
        raise SpecError("spec.rollout.pools", "no pool has a replica: set replicas of one to 1 or more")


def _uris(config: JobConfig) -> None:
    if config.spec.weights.needs_uri:
        from rljob_runtime.weights.create import open_transport

        open_transport(config.spec.weights.transport, uri=config.weights_uri).close()
    local_path(config.checkpoint_uri, field="spec.trainer.checkpoint.uri")


_NAMES = (_model, _engines, _backend)
_FITS = (_engines_fit, _adapters_fit)
_REST = (_data_and_rewards, _runs_here, _uris)


def check_pods(job: ResolvedJob, environment: Mapping[str, str]) -> None:
    """Every process of the job could be started here.

    Raises:
        SpecError: a template does not fit, or needs what only a cluster has.
    """
    for manifest in desired(job, Targets(attempt=1, failures=0, pools={})):
        if (template := manifest.get("spec", {}).get("template")) is not None:
            local_pod.check(template, environment)


def allow_modules_beside(file: Path) -> str:
    """Let reward functions be imported from the manifest's folder; that folder, for PYTHONPATH."""
    return allow_modules_in(file.resolve().parent)


def allow_modules_in(path: Path) -> str:
    """Let reward functions be imported from a folder; that folder, for PYTHONPATH."""
    folder = str(path)
    if folder not in sys.path:
        sys.path.append(folder)
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))


# ----------------------------------------------------------------------------------------------- the folder


def check_output(folder: RunFolder, job: RLJob, *, resume: bool, model: str) -> Identity | None:
    """The job in the folder to go on with; None for a new one.

    Args:
        model: identity of the job's initial model.

    Raises:
        SpecError: the folder cannot be written, or does not hold what `resume` says.
        InvalidManifest: it holds this job with settings that must stay as they were.
    """
    _check_writable(folder.path)
    identity = folder.identity()
    if identity is None:
        if resume:
            raise SpecError("--resume", f"{folder.path} holds no run: remove --resume to start one")
        _check_empty(folder.path)
        _check_unused(job)
        return None
    if (identity.namespace, identity.name) != (job.metadata.namespace, job.metadata.name):
        raise SpecError(
            "--output", f"{folder.path} holds another job, {identity.name}: choose another folder"
        )
    if identity.model != model:
        raise SpecError(
            "spec.model.uri",
            f"{folder.path} holds checkpoints of another model ({_uri(identity)}): choose another --output",
        )
    if changed := fixed_differences(identity, job):
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
    if not resume:
        raise SpecError(
            "--output",
            f"{folder.path} holds a run of this job: add --resume to go on with it, or choose another",
        )
    _check_resumable(folder, job, identity)
    return identity


def _uri(identity: Identity) -> str:
    return str(identity.manifest["spec"]["model"]["uri"])


def _check_resumable(folder: RunFolder, job: RLJob, identity: Identity) -> None:
    nats_url = job.spec.nats.url or ""
    if identity.nats_url != nats_url:
        place = identity.nats_url or "the embedded server: remove it"
        raise SpecError("spec.nats.url", f"the streams of this job are on {place}")
    if not nats_url and not any((folder.nats / "store").glob("jetstream/*")):
        raise SpecError(
            "--resume",
            f"{folder.path} holds neither a checkpoint nor a ledger: remove that folder and start without --resume",
        )
    from rljob_runtime.training.checkpoints import CheckpointStore

    root = job.spec.trainer.checkpoint.uri or str(folder.checkpoints)
    model = local_path(job.spec.model.uri, field="spec.model.uri")
    checkpoints = CheckpointStore(root, model_path=model)
    for key in checkpoints.keys():  # noqa: SIM118  no mapping
        try:
            checkpoints.verify_model(key)
        except SpecError:
            raise
        except RLJobError as error:
            raise SpecError("spec.trainer.checkpoint.uri", str(error)) from error


def _check_unused(job: RLJob) -> None:
    for field, uri, holds_any in (
        ("spec.trainer.checkpoint.uri", job.spec.trainer.checkpoint.uri, _holds_checkpoints),
        ("spec.weights.uri", job.spec.weights.uri, partial(_holds_weights, job.spec.weights.transport)),
    ):
        if uri is not None and holds_any(uri, field):
            raise SpecError(field, f"{uri} holds what another job stored: choose an empty or a new folder")


def _holds_checkpoints(uri: str, field: str) -> bool:
    return any(local_path(uri, field=field).glob("step-*"))


def _holds_weights(transport_name: WeightTransportName, uri: str, field: str) -> bool:
    from rljob_runtime.weights.create import open_transport

    with closing(open_transport(transport_name, uri=uri)) as transport:
        try:
            return any(transport.manifest(key) is not None for key in transport.listing())
        except StoreUnavailable as error:
            raise SpecError(field, str(error)) from error


def _check_empty(path: Path) -> None:
    if path.is_dir() and (other := sorted(entry.name for entry in path.iterdir() if entry.name != ".lock")):
        some = ", ".join(other[:3]) + (", …" if len(other) > 3 else "")
        raise SpecError("--output", f"{path} holds other files ({some}): choose an empty or a new folder")


def _check_writable(path: Path) -> None:
    """Also of a folder that is still to be made."""
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


# --------------------------------------------------------------------------------------------------- the net


def check_nats(job: RLJob, port: int | None) -> None:
    """The given server answers; the port for an embedded one is free.

    Raises:
        SpecError: not so.
    """
    if job.spec.nats.url is not None:
        if port is not None:
            raise SpecError("--nats-port", "spec.nats.url names a server already: remove one of both")
        _check_answers(job.spec.nats.url)
        return
    from rljob_runtime.messaging.nats.server import binary

    try:
        binary()
    except RLJobError as error:
        raise SpecError("spec.nats.url", str(error)) from error
    if port is not None:
        _check_free(port)


def _check_answers(url: str) -> None:
    parsed = urlparse(url)
    host, port = parsed.hostname or "localhost", parsed.port or _NATS_PORT
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            if parsed.scheme in {"nats", "tls"} and not connection.recv(5).startswith(b"INFO"):
                raise SpecError("spec.nats.url", f"what answers at {host}:{port} is no nats-server")
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecError(
            "spec.nats.url",
            f"no nats-server answers at {host}:{port} ({reason}): start one, or remove the field",
        ) from error


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SpecError(
                "--nats-port",
                f"port {port} is in use: choose another, or leave the flag out for any free one",
            ) from error
