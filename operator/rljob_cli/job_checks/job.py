"""Everything about a job that can be known before anything is started, beyond what its manifest's schema says.

Nothing is left behind (in an object store, an empty object is written and deleted); torch is not loaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer

from rljob_cli.manifest.load import InvalidManifest
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.local import pod as local_pod
from rljob_runtime.locations import local_path
from rljob_runtime.storage.object_access import check_usable
from rljob_runtime.storage.objects import is_object_store

_OPTIONS = "spec.rollout.engine.options"
_CALL_SECONDS = 30.0
"""Seconds at most for a call of a reward function on a made-up answer."""


_JobCheck = Callable[[JobConfig], Sequence[str] | None]
"""Raises what is wrong with a job, and returns what the user should know of it."""


def check_job(config: JobConfig) -> list[str]:
    """What the spec names exists and fits together; returns warnings of what fits, and is perhaps not meant.

    Raises:
        InvalidManifest: all that does not.
    """
    warnings: list[str] = []
    problems = _found(_NAMES, config, warnings)
    if not problems:  # files that are missing or damaged cannot be compared
        problems = _found(_FITS, config, warnings)
    if not problems:  # nothing is asked that does not fit, or should not be sent
        problems = _found((_servers,), config, warnings)
    problems += _found(_REST, config, warnings)
    if problems:
        raise InvalidManifest("the job cannot run", problems)
    return warnings


def _found(checks: Sequence[_JobCheck], config: JobConfig, warnings: list[str]) -> list[SpecError]:
    return [problem for check in checks for problem in _caught(check, config, warnings)]


def _caught(check: _JobCheck, config: JobConfig, warnings: list[str]) -> Iterator[SpecError]:
    try:
        warnings += check(config) or ()
    except SpecError as error:
        yield error
    except InvalidManifest as errors:
        yield from errors.exceptions  # type: ignore[misc]


def _model(config: JobConfig) -> None:
    folder = local_path(config.spec.model.uri, field="spec.model.uri")
    if not folder.is_dir():
        raise _wrong_model(f"there is no folder {folder}: give the folder of a Hugging Face model")
    from rljob_runtime.model.folder_files import read_settings
    from rljob_runtime.model.settings import check_whole

    check_whole(folder)
    settings = read_settings(folder / "config.json")
    computes = _reads_weights(config)
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


def _reads_weights(config: JobConfig) -> bool:
    """Whether the job's engine or backend reads the model's weights; a name that does not resolve reads none."""
    from rljob_runtime.engines.registry import find_engine
    from rljob_runtime.training.registry import find_backend

    with suppress(SpecError):
        if find_engine(config.spec.rollout.engine.name).reads_weights:
            return True
    with suppress(SpecError):
        return find_backend(config.spec.trainer.backend).trains_model
    return False


def _wrong_model(message: str) -> SpecError:
    return SpecError("spec.model.uri", message)


def _engines(config: JobConfig) -> None:
    from rljob_runtime.engines.registry import check_engine

    _in_every_pool(config, lambda options: check_engine(config.spec.rollout.engine.name, options))


def _length_predictor(config: JobConfig) -> None:
    from rljob_runtime.lengths.registry import check_predictor

    predictor = config.spec.rollout.length_predictor
    check_predictor(predictor.name, predictor.options)


def _engines_fit(config: JobConfig) -> None:
    from rljob_runtime.engines.registry import check_fit

    name, sampling = config.spec.rollout.engine.name, config.spec.rollout.sampling
    folder = local_path(config.spec.model.uri)
    _in_every_pool(
        config,
        lambda options: check_fit(name, model_path=folder, options=options, max_tokens=sampling.max_tokens),
    )


def _servers(config: JobConfig) -> None:
    from rljob_runtime.engines.registry import check_engine, find_engine

    name = config.spec.rollout.engine.name
    engine = find_engine(name)
    if engine.check_pools is not None and (problems := engine.check_pools(config)):
        raise InvalidManifest("the engines cannot run beside each other", problems)
    if (ask := engine.check_server) is not None:
        _in_every_pool(config, lambda options: asyncio.run(ask(check_engine(name, options))))


def _in_every_pool(config: JobConfig, check: Callable[[Mapping[str, Any]], object]) -> None:
    """Check each pool's engine options.

    Raises:
        InvalidManifest: all that is wrong, each at the field where the pool has it from.
    """
    problems: dict[str, SpecError] = {}  # by field, so that a problem of all pools is reported once
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


def _trackers(config: JobConfig) -> None:
    from rljob_runtime.trackers import check_tracker

    problems: dict[str, SpecError] = {}  # what is wrong for all of them, once
    for number, tracker in enumerate(config.spec.trackers):
        try:
            check_tracker(tracker, path=f"spec.trackers[{number}]")
        except SpecError as error:
            problems.setdefault(str(error), error)
    if problems:
        raise InvalidManifest("a tracker cannot run", list(problems.values()))


def _loss(config: JobConfig) -> list[str]:
    from rljob_runtime.training.losses.registry import check_loss

    return check_loss(config.spec)


def _adapters_fit(config: JobConfig) -> None:
    from rljob_runtime.training.registry import check_adapter_rank

    check_adapter_rank(config.spec, local_path(config.spec.model.uri))


def _links(config: JobConfig) -> list[str]:
    from rljob_runtime.training.anchor_transfer import check_links

    return check_links(config)


def _engine_devices(config: JobConfig) -> None:
    from rljob_runtime.engines.registry import check_engine

    name = config.spec.rollout.engine.name
    _in_every_pool(config, lambda options: check_device(check_engine(name, options), field=_OPTIONS))


def _trainer_device(config: JobConfig) -> None:
    from rljob_runtime.training.registry import check_backend

    check_device(check_backend(config.spec), field="spec.trainer.options")


def _data_and_rewards(config: JobConfig) -> list[str]:
    from rljob_runtime.data.prompts import open_prompts
    from rljob_runtime.rewards.job_items import JobItems
    from rljob_runtime.rewards.registry import resolve
    from rljob_runtime.rewards.trial import load_on_trial, names_user_code
    from rljob_runtime.roles.coordinator.data_checks import ScanReport, check_data

    report = ScanReport(partial(typer.echo, err=True))
    training, held_out = open_prompts(config, report)
    warnings = check_data(config, training, held_out)
    setup = JobItems(config).setup
    if names_user_code(setup):  # which may end the process that imports it, or never return
        trial = load_on_trial(setup, call_seconds=min(config.spec.reward.timeout_seconds, _CALL_SECONDS))
        if trial.error is not None:
            raise trial.error
        warnings += trial.warnings
    else:
        for source in (training, *held_out.sets):
            resolve(config.spec.reward.called, source)
    return warnings


def _environment(config: JobConfig) -> None:
    if config.spec.rollout.environment is None:
        return
    from rljob_runtime.environments.client import EnvironmentClient

    async def load() -> None:
        client = EnvironmentClient(config)
        try:
            await client.start()
        finally:
            await client.close()

    asyncio.run(load())


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
        if is_object_store(config.weights_uri):
            check_usable(config.weights_uri, field="spec.weights.uri")
    if not is_object_store(config.checkpoint_uri):
        local_path(config.checkpoint_uri, field="spec.trainer.checkpoint.uri")
        return
    check_usable(config.checkpoint_uri, field="spec.trainer.checkpoint.uri")


_NAMES = (_model, _engines, _length_predictor, _backend, _loss, _trackers)
_FITS = (_engines_fit, _adapters_fit, _links, _engine_devices, _trainer_device)
_REST: tuple[_JobCheck, ...] = (_data_and_rewards, _environment, _runs_here, _uris)


def check_pods(job: ResolvedJob, environment: Mapping[str, str]) -> None:
    """Every process of the job could be started here.

    Raises:
        SpecError: a template does not fit, or needs what only a cluster has.
    """
    for manifest in desired(job, Targets(attempt=1, failures=0, pools={})):
        if (template := manifest.get("spec", {}).get("template")) is not None:
            local_pod.check(template, environment)


_DEVICES = ("nvidia[0-9]*", "dxg", "kfd")
"""Files below /dev that drivers of GPUs make: NVIDIA's, that of Windows' Linux, AMD's."""
_HIDDEN = {"", "-1", "none", "NoDevFiles"}
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs from a process."""


def has_gpu(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a process of this machine sees a GPU."""
    if environment.get("CUDA_VISIBLE_DEVICES", "0") in _HIDDEN:
        return False
    return any(any(devices.glob(pattern)) for pattern in _DEVICES)


def check_device(options: Any, *, field: str) -> None:
    """Check that the device that options name is there.

    Args:
        options: an engine's or a backend's own, checked.
        field: of the manifest that holds them.

    Raises:
        SpecError: it is a GPU, and there is none.
    """
    if getattr(options, "device", None) == "cuda" and not has_gpu():
        raise SpecError(
            f"{field}.device",
            "cuda needs a GPU, and this machine shows none (/dev/nvidia*, CUDA_VISIBLE_DEVICES): write cpu, or run "
            "the job where there is one",
        )
