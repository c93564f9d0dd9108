"""Engines, trainer and lengths of a scenario: by the command's words, by a run, or by an emulated job's options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from rljob_core.advice import advice
from rljob_core.config import JobConfig
from rljob_core.emulation import DeviceName, ResponseLengths
from rljob_core.errors import SpecError
from rljob_core.spec import PoolSpec
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions, LengthOptions
from rljob_runtime.training.options import EmulatedBackendOptions
from rljob_sim import AnswerLengths, EngineKind, MeasuredLengths, TrainerProfile
from rljob_sim.scenario import STREAMRL_LENGTHS

DEVICES: dict[str, DeviceName] = {name.lower(): name for name in get_args(DeviceName)}
EMULATED = "Emulated"
AT = "@"
"""Between a device and the site where it is."""
Validated = TypeVar("Validated", bound=BaseModel)
_TRAINER = {to_camel(field.name): field.name for field in fields(TrainerProfile) if field.name != "price"}
_LENGTHS = {to_camel(field.name): field.name for field in fields(ResponseLengths)}
EXAMPLES = {
    "--engines": "--engines h100=2,l40s=4",
    "--trainer": "--trainer secondsPerToken=1e-4",
    "--lengths": "--lengths median=1160,sigma=0.99",
    "--price": "--price h100=2.5,trainer=5",
}


def numbers(option: str, text: str) -> dict[str, float]:
    """Read `name=number,name=number`.

    Raises:
        SpecError: it is something else.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise SpecError(option, f"{part!r} is not name=number: write {EXAMPLES[option]}")
        if not 0 <= found[name.strip()] < math.inf:
            raise SpecError(option, f"{name.strip()} must not be negative, and finite")
    return found


def engines_of(
    config: JobConfig,
    text: str,
    *,
    slots: int,
    prices: Mapping[str, float],
    measured: Mapping[str, EngineKind] | None = None,
) -> tuple[EngineKind, ...]:
    """The engines that a fleet names; those of the job's pools if it names none.

    Args:
        config: of the job.
        text: the fleet, such as `h100=2`.
        slots: of the devices.
        prices: by device or pool.
        measured: by pool, the engines of the run that is the pattern; None without one.

    Raises:
        SpecError: what is named is not known, or the speed of the job's own engines is unknown.
    """
    if text:
        kinds = tuple(_named(text, slots, measured or {}))
    else:
        kinds = _emulated(config) if measured is None else _measured(config, measured)
        sites = config.spec.rollout.pool_sites
        kinds = tuple(replace(kind, site=sites.get(kind.name, "")) for kind in kinds)
    return tuple(replace(kind, price=prices.get(_device(kind), 0.0)) for kind in kinds)


def _device(kind: EngineKind) -> str:
    return kind.name.removesuffix(f"-{kind.site}")


def at_sites(config: JobConfig, kinds: Sequence[EngineKind]) -> JobConfig:
    """The job with the pools of a fleet of which some engines are at sites, instead of its own; else as it is.

    Raises:
        SpecError: the link to a site is unknown.
    """
    known = config.spec.rollout.pool_sites
    sites = {kind.site for kind in kinds if kind.site}
    for site in sorted(sites - config.links.keys() - set(known.values())):
        raise SpecError(
            "--engines",
            f"the link to {site} is unknown: describe the Site in the job's file, beside the job, with "
            "bitsPerSecond and latencySeconds in its spec.link",
        )
    if all(known.get(kind.name, "") == kind.site for kind in kinds):
        return config
    pools = [
        PoolSpec(
            name=kind.name,
            site=kind.site or None,
            replicas=kind.count,
            cost_per_hour=f"{kind.price:f}" if kind.price else None,
        )
        for kind in kinds
    ]
    rollout = config.spec.rollout.model_copy(update={"pools": pools})
    return config.model_copy(update={"spec": config.spec.model_copy(update={"rollout": rollout})})


def _named(text: str, slots: int, measured: Mapping[str, EngineKind]) -> list[EngineKind]:
    found = []
    for given, count in numbers("--engines", text).items():
        name, _, site = given.partition(AT)
        if name not in measured and name.lower() not in DEVICES:
            known = ", ".join([*measured, *DEVICES])
            raise SpecError("--engines", f"{name} is not a known device: name one of {known}")
        if count < 1 or count != int(count):
            raise SpecError(
                "--engines", f"{given}={count:g} is not a number of engines: it must be 1 or more"
            )
        if name in measured:
            kind = replace(measured[name], count=int(count))
        else:
            kind = EngineKind.of(DEVICES[name.lower()], int(count), slots)
        found.append(replace(kind, name=f"{kind.name}-{site}", site=site) if site else kind)
    return found


def _measured(config: JobConfig, measured: Mapping[str, EngineKind]) -> tuple[EngineKind, ...]:
    """The engines of the job's pools, as the run measured them; what the job itself says of them goes first."""
    found = []
    for pool in config.spec.rollout.pools:
        if (kind := measured.get(pool.name)) is None:
            raise SpecError(
                f"spec.rollout.pools.{pool.name}",
                f"the run has not measured engines of this pool, but of {', '.join(measured)}: give it one of these "
                "names, or name the fleet by --engines",
            )
        slots = config.engine_options(pool.name).get("slots")
        found.append(
            replace(
                kind,
                count=pool.replicas or kind.count,
                slots=slots if isinstance(slots, int) else kind.slots,
            )
        )
    return tuple(found)


def with_unmeasured(config: JobConfig, kinds: Mapping[str, EngineKind]) -> dict[str, EngineKind]:
    """The engines of a run with what no run measures, and what the options of its job tell of emulated ones."""
    if config.spec.rollout.engine.name != EMULATED:
        return dict(kinds)
    known = {kind.name: kind for kind in _emulated(config)}
    return {
        name: replace(
            kind, prefill_seconds=known[name].prefill_seconds, swap_seconds=known[name].swap_seconds
        )
        if name in known
        else kind
        for name, kind in kinds.items()
    }


def _emulated(config: JobConfig) -> tuple[EngineKind, ...]:
    rollout = config.spec.rollout
    if rollout.engine.name != EMULATED:
        raise SpecError(
            "--engines",
            f"the job's engine {rollout.engine.name} has no profile: name devices, such as --engines h100=2,l40s=4",
        )
    return tuple(
        _emulated_kind(pool.name, pool.replicas or 1, _engine(config, pool.name)) for pool in rollout.pools
    )


def _emulated_kind(name: str, count: int, options: EmulatedEngineOptions) -> EngineKind:
    scale = options.time_scale
    return EngineKind(
        name=name,
        count=count,
        slots=options.slots,
        profile=options.profile,
        kv_tokens=options.kv_tokens,
        prefill_seconds=scale * options.prefill_seconds_per_token,
        swap_seconds=scale * options.swap_seconds,
    )


def _engine(config: JobConfig, pool: str) -> EmulatedEngineOptions:
    options = config.engine_options(pool)
    return _validated(EmulatedEngineOptions, options, "spec.rollout.engine.options")


def trainer_of(
    config: JobConfig, text: str, *, price: float, measured: TrainerProfile | None = None
) -> TrainerProfile:
    """The trainer that the command describes; what it leaves out is the run's, or that of the backend `Emulated`.

    Raises:
        SpecError: the time that training takes is unknown.
    """
    found = numbers("--trainer", text)
    if unknown := found.keys() - _TRAINER.keys():
        raise SpecError("--trainer", f"{', '.join(sorted(unknown))}: it has {', '.join(_TRAINER)}")
    if measured is not None:
        changed = {_TRAINER[name]: value for name, value in found.items()}
        return replace(measured, price=price, **changed)
    if "secondsPerToken" not in found:
        trainer = config.spec.trainer
        if trainer.backend != EMULATED:
            raise SpecError(
                "--trainer",
                f"nothing says how long the backend {trainer.backend} takes for a token: measure it, and give "
                "--trainer secondsPerToken=1e-4",
            )
        options = _validated(EmulatedBackendOptions, trainer.options, "spec.trainer.options")
        ranks = trainer.num_nodes * trainer.num_proc_per_node
        found = {
            "secondsPerToken": options.seconds_per_token / ranks,
            "secondsPerTrajectory": options.seconds_per_trajectory / ranks,
            "stepSeconds": options.step_seconds,
        } | found
    return TrainerProfile(**{_TRAINER[name]: value for name, value in found.items()}, price=price)


def lengths_of(config: JobConfig, text: str, measured: MeasuredLengths | None = None) -> AnswerLengths:
    """The lengths that the command describes; what it leaves out is the run's, the emulated engine's, or StreamRL's.

    Raises:
        SpecError: they are impossible.
    """
    rollout, known = config.spec.rollout, STREAMRL_LENGTHS
    if measured is not None:
        if not text:
            return measured.cut(rollout.sampling.max_tokens)
        known = ResponseLengths(
            measured.median, measured.sigma, measured.prompt_sigma, measured.all[0], measured.max
        )
    elif rollout.engine.name == EMULATED:
        known = _engine(config, rollout.pools[0].name).lengths.distribution
    known = replace(known, max=min(known.max, rollout.sampling.max_tokens))
    found = numbers("--lengths", text)
    if unknown := found.keys() - _LENGTHS.keys():
        raise SpecError("--lengths", f"{', '.join(sorted(unknown))}: it has {', '.join(_LENGTHS)}")
    changed = {_LENGTHS[name]: int(value) if value.is_integer() else value for name, value in found.items()}
    return _validated(LengthOptions, asdict(known) | changed, "--lengths").distribution


def _validated(kind: type[Validated], given: Mapping[str, object], field: str) -> Validated:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = advice(kind, dict(given), first)
        raise SpecError(".".join(map(str, (field, *first["loc"]))), message) from error
