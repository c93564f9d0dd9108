"""The jobs that one command simulates: each fleet with each value of what is swept, and a run as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rljob_cli.manifest.load import change_job, load_job_and_links
from rljob_cli.simulate.fleet import at_sites, engines_of, lengths_of, numbers, trainer_of, with_unmeasured
from rljob_cli.simulate.measured import MeasuredJob
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, SiteLinkSpec
from rljob_sim import Scenario

PROMPT_TOKENS = 256
MANY_ENGINES, DECIDE_SECONDS = 2000, 0.05
"""With more engines, a coordinator has many observations at once: it decides by all that came in so many seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job to simulate.

    Attributes:
        changes: the values of what is swept, by field.
        scenario: the job, and what it runs on.
    """

    changes: dict[str, str]
    scenario: Scenario

    @property
    def engines(self) -> str:
        """The fleet, in words."""
        return ", ".join(f"{kind.count} {kind.name}" for kind in self.scenario.engines)

    @property
    def name(self) -> str:
        """The fleet and what differs, in words."""
        return "; ".join([self.engines, *(f"{field}={value}" for field, value in self.changes.items())])


@dataclass(frozen=True, slots=True)
class Words:
    """What the command was given.

    Attributes:
        file: the manifest; None for that of the run.
        overrides: changes of its fields.
        fleets: the engines of each fleet; empty for the job's own.
        sweep: a field with its values, each.
        steps: to simulate.
        prompt_tokens: of each prompt; None for those of the run, or `PROMPT_TOKENS`.
    """

    file: Path | None
    overrides: Sequence[str]
    fleets: Sequence[str]
    slots: int
    lengths: str
    prompt_tokens: int | None
    trainer: str
    price: str
    sweep: Sequence[str]
    length_correlation: float
    steps: int


def cases_of(words: Words, run: MeasuredJob | None) -> list[Case]:
    """All jobs, valid: the run as it was is the first, if there is one.

    Raises:
        SpecError, InvalidManifest: one of them is not possible.
    """
    found = list(_cases(words, run))
    if run is None:
        return found
    plain = replace(
        words, file=None, overrides=(), fleets=(), lengths="", prompt_tokens=None, trainer="", sweep=()
    )
    (as_it_ran,) = _cases(plain, run)
    others = [case for case in found if (case.changes, case.scenario) != ({}, as_it_ran.scenario)]
    blank = dict.fromkeys((name for case in found for name in case.changes), "–")
    return [replace(as_it_ran, changes=blank), *others]


def _cases(words: Words, run: MeasuredJob | None) -> Iterator[Case]:
    fields = [_swept(text) for text in words.sweep]
    for fleet, values in product(words.fleets or [""], product(*(values for _, values in fields))):
        changes = dict(zip((name for name, _ in fields), values, strict=True))
        job, links = _job(words, run, [f"{name}={value}" for name, value in changes.items()])
        yield Case(changes, _scenario(words, _config(job, links), fleet, run))


def _swept(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    if not name.startswith("spec.") or not values:
        raise SpecError(
            "--sweep", f"{text!r} is not spec.path=value,value: write spec.pipeline.maxStaleness=1,2,4"
        )
    return name, values.split(",")


def _job(
    words: Words, run: MeasuredJob | None, changes: Sequence[str]
) -> tuple[RLJob, dict[str, SiteLinkSpec]]:
    """The job with these changes, and the links to its sites."""
    overrides = [*words.overrides, *changes, f"spec.steps={words.steps}"]
    if words.file is not None:
        return load_job_and_links(words.file, overrides)
    if run is None:
        raise SpecError("FILE", "name the YAML file of an RLJob, or a run's folder by --from")
    return change_job(run.job, overrides, run.path), run.links


def _config(job: RLJob, links: dict[str, SiteLinkSpec]) -> JobConfig:
    return JobConfig(
        namespace="default",
        job=job.metadata.name,
        uid="simulated",
        spec=job.spec.model_copy(update={"evaluation": None}),
        weights_uri="",
        checkpoint_uri="",
        trainer_log_uri="",
        links=links,
    )


def _scenario(words: Words, config: JobConfig, fleet: str, run: MeasuredJob | None) -> Scenario:
    prices = numbers("--price", words.price)
    price = prices.get("trainer", 0.0)
    kinds = with_unmeasured(_config(run.job, run.links), run.kinds) if run is not None else None
    engines = engines_of(config, fleet, slots=words.slots, prices=prices, measured=kinds)
    measured = run.trainer if run is not None else None
    trainer = trainer_of(config, words.trainer, price=price, measured=measured)
    return Scenario(
        at_sites(config, engines),
        engines,
        trainer,
        lengths_of(config, words.lengths, run.lengths if run is not None else None),
        words.prompt_tokens or (run.prompt_tokens if run is not None else PROMPT_TOKENS),
        reward_seconds=run.reward_seconds if run is not None else 0.0,
        length_correlation=words.length_correlation,
        decide_seconds=DECIDE_SECONDS if sum(kind.count for kind in engines) > MANY_ENGINES else 0.0,
    )
