"""Jobs in which policies of dispatch are compared, with the engines that they run on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from policies import CORRELATION, POLICIES, RANKER, WINDOW, only
from scenarios import job_config

from rljob_core.emulation import ResponseLengths
from rljob_sim import EngineKind, Scenario, SimulationReport, TrainerProfile, simulate
from rljob_sim.scenario import STREAMRL_LENGTHS

SYNCHRONOUS: dict[str, Any] = {"mode": "Synchronous"}
STREAMING: dict[str, Any] = {"mode": "Streaming"}


def ahead(bound: int) -> dict[str, Any]:
    """The pipeline that runs ahead by so many versions."""
    return {"mode": "BoundedAsync", "maxStaleness": bound} if bound else STREAMING


@dataclass(frozen=True, slots=True)
class Regime:
    """A batch, and what generates and trains it.

    Attributes:
        prompts, siblings: of a batch.
        per_token: seconds of training for a token.
        steps, skip: of each job, and the first of these that are left out: the pipeline fills in them.
        seeds: of lengths, each of which is a job.
    """

    engines: tuple[EngineKind, ...]
    prompts: int
    siblings: int = 8
    per_token: float = 8e-6
    lengths: ResponseLengths = STREAMRL_LENGTHS
    steps: int = 20
    skip: int = 8
    seeds: tuple[int, ...] = (0,)

    def job(self, pipeline: dict[str, Any], policies: tuple[str, ...], seed: int) -> SimulationReport:
        """Simulate one job with these policies alone."""
        config = job_config(
            steps=self.steps,
            prompts=self.prompts,
            siblings=self.siblings,
            max_tokens=self.lengths.max,
            **({} if WINDOW in policies else {"window": 0}),
            **pipeline,
        )
        scenario = Scenario(
            config,
            self.engines,
            TrainerProfile(self.per_token),
            replace(self.lengths, seed=seed),
            length_correlation=CORRELATION if RANKER in policies else 0.0,
        )
        with only(*policies):
            return simulate(scenario)

    def outcome(self, pipeline: dict[str, Any], policies: tuple[str, ...] = POLICIES) -> Outcome:
        """What jobs with these policies alone reach."""
        return _outcome(self, tuple(sorted(pipeline.items())), policies)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of the jobs of a regime, one for each seed."""

    seconds: float
    staleness: float
    max_staleness: int

    def over(self, other: Outcome) -> float:
        """The throughput in that of others, which trained the same."""
        return other.seconds / self.seconds


@cache
def _outcome(regime: Regime, pipeline: tuple[tuple[str, Any], ...], policies: tuple[str, ...]) -> Outcome:
    jobs = [regime.job(dict(pipeline), policies, seed) for seed in regime.seeds]
    return Outcome(
        # Of the same tokens: harmonic means would weigh seeds by their answers' lengths.
        seconds=sum(1 / job.tokens_per_second(skip=regime.skip) for job in jobs),
        staleness=sum(job.staleness(skip=regime.skip) for job in jobs) / len(jobs),
        max_staleness=max(job.max_staleness for job in jobs),
    )


# 16 slots on each engine, which a batch fills once.
UNEQUAL = Regime((EngineKind.of("H100", 2, 16), EngineKind.of("L40S", 4, 16)), prompts=12, steps=24)
EQUAL = Regime((EngineKind.of("H100", 4, 16),), prompts=8, steps=24, seeds=(0, 1, 2))
TRAINER_BOUND = replace(EQUAL, per_token=8e-4, steps=30, skip=12, seeds=(0,))
BALANCED = replace(EQUAL, per_token=2.8e-4, steps=40, skip=12, seeds=(0,))
# A batch in which each engine's share of the contexts is larger than its cache; answers of 4,000 tokens, cut at 32k.
FULL_CACHES = Regime(
    (EngineKind.of("L40S", 4, 64),),
    prompts=32,
    lengths=replace(STREAMRL_LENGTHS, median=4000, max=32_768),
    steps=16,
    skip=6,
)
# Groups of 16, cut at 32k, as jobs with long reasoning have them; the trainer takes a fifth of a step.
LONG_TAIL = Regime(
    (EngineKind.of("H100", 4, 64),),
    prompts=16,
    siblings=16,
    per_token=3e-5,
    lengths=replace(STREAMRL_LENGTHS, max=32_768),
    steps=24,
)
