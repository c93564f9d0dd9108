"""Simulated jobs over two sites: throughput and tokens per dollar, over links that are slow or cost something."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policies import CORRELATION
from scenarios import SHORT, engine, job_config, scenario

from rljob_core.config import JobConfig
from rljob_core.spec import RLJobSpec, SiteLinkSpec
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_sim import EngineKind, Scenario, SimulationReport, TrainerProfile, simulate
from rljob_sim.scenario import STREAMRL_LENGTHS

WAN = SiteLinkSpec(bits_per_second=100_000_000, latency_seconds=0.06, price_per_gigabyte="0.05")
AHEAD = {"mode": "BoundedAsync", "maxStaleness": 2}
VERSION_BYTES = 1e7
"""Of each version on the link: what changes of a model, or adapters."""


def over_sites(config: JobConfig, kinds: tuple[EngineKind, ...], link: SiteLinkSpec) -> JobConfig:
    """The job with the pools of these engines."""
    pools = [
        {"name": kind.name, "costPerHour": f"{kind.price:g}", "site": kind.site or None} for kind in kinds
    ]
    spec = config.spec.model_dump(mode="json", by_alias=True)
    spec["rollout"]["pools"] = pools
    changed = {"spec": RLJobSpec.model_validate(spec), "links": {"west": link}}
    return config.model_copy(update=changed)


def streamrl_job(
    *kinds: EngineKind, prompts: int, steps: int = 18, trainer: TrainerProfile
) -> SimulationReport:
    """A job whose answers are as long as StreamRL measured them."""
    config = job_config(steps=steps, prompts=prompts, siblings=8, max_tokens=STREAMRL_LENGTHS.max, **AHEAD)
    return simulate(
        Scenario(
            over_sites(config, kinds, WAN), kinds, trainer, STREAMRL_LENGTHS, length_correlation=CORRELATION
        )
    )


def test_half_of_the_engines_60_ms_and_100_mbit_away_cost_no_throughput() -> None:
    trainer = TrainerProfile(8e-6, version_bytes=VERSION_BYTES)
    one = replace(EngineKind.of("H100", 4, 16), name="near")
    near, far = replace(one, count=2), replace(one, name="far", count=2, site="west")
    alone = streamrl_job(one, prompts=24, trainer=trainer)
    both = streamrl_job(near, far, prompts=24, trainer=trainer)
    assert both.tokens_per_second(skip=6) >= 0.95 * alone.tokens_per_second(skip=6)
    assert both.max_staleness <= 2
    used = both.sites["west"]
    versions = VERSION_BYTES * (len(both.steps) - 1)
    assert versions <= used.bytes <= 1.05 * versions + 3 * 12 * 16_384 * used.trajectories


def test_generation_on_cheaper_engines_at_another_site_brings_more_tokens_per_dollar() -> None:
    """StreamRL's case: the trainer's devices are fast at computing, and decoding is bound by memory.

    An H100 costs 2.85 times as much as an H20. In both cases two H100 train, the trainer is hardly the bottleneck, and
    the fleets generate about as much.
    """
    trainer = TrainerProfile(2e-5, price=2 * 2.85, version_bytes=VERSION_BYTES)
    one_site = replace(EngineKind.of("H100", 8, 16), name="h100", price=2.85)
    far = replace(EngineKind.of("H20", 12, 16), name="h20", price=1.0, site="west")
    found = []
    for kind in (one_site, far):
        report = streamrl_job(kind, prompts=24, trainer=trainer)
        found.append(report.tokens_per_second(skip=6) / report.cost_per_hour)
    assert found[1] >= 1.5 * found[0]


@pytest.fixture
def slow() -> Scenario:
    """Engines at a site that generate faster than their link carries."""
    kinds = (engine(1, name="near"), engine(4, name="far", site="west"))
    link = SiteLinkSpec(bits_per_second=100_000, latency_seconds=0.5)
    config = over_sites(job_config(steps=6, prompts=16), kinds, link)
    return scenario(config, *kinds, lengths=replace(SHORT, max=1024))


def test_a_site_whose_link_is_slow_gets_as_much_work_as_the_link_carries(slow: Scenario) -> None:
    report = simulate(slow)
    used = report.sites["west"]
    assert report.outcome == "Succeeded"
    assert used.trajectories > 0
    assert used.outbox < trajectory_stream_bytes(slow.config.spec)
    # 30 s of the link and what was under way: 64 answers of 1,024 tokens at most.
    assert used.outbox <= 30 * 12_500 + 64 * (12 * 1024 + 2048 + 80)


def test_a_seed_is_one_simulation(slow: Scenario) -> None:
    assert simulate(slow) == simulate(slow)


def test_a_coordinator_that_decides_less_often_trains_the_same() -> None:
    often, seldom = (simulate(scenario(decide_seconds=seconds)) for seconds in (0.0, 0.02))
    assert [len(step.staleness) for step in often.steps] == [len(step.staleness) for step in seldom.steps]
    assert seldom.seconds == pytest.approx(often.seconds, rel=0.1)
