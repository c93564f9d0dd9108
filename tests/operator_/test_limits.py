"""How much one job may make the operator render and keep."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children import limits
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.reconcile import Reconciler

MOST_COPIES = 2


def large(make_job: MakeJob, size: int, pools: int) -> RLJob:
    """A job with so many bytes of options, and so many pools."""
    options = {f"o{n}": "x" * (size // 10) for n in range(10)}
    return make_job(
        rollout__engine={"name": "Torch", "options": options},
        rollout__pools=[{"name": f"p{n}"} for n in range(pools)],
    )


def rendered(job: RLJob, defaults: ClusterDefaults) -> int:
    """Bytes of all children, those of the pools too."""
    pools: dict[str, Any] = {
        p.name: {"metadata": {"uid": p.name}, "spec": {}} for p in job.spec.rollout.pools
    }
    return len(json.dumps(desired(resolve_job(job, defaults), Targets(1, 0, pools))))


@pytest.mark.parametrize(
    ("size", "pools", "words"),
    [
        (900_000, 64, "and with 64 pools there would be 130 copies of it, 118.5 MB of at most 16.8 MB"),
        (1_100_000, 1, "takes 1.1 MB, of at most 1.0 MB"),
    ],
)
def test_a_job_that_would_be_too_large_is_refused(
    make_job: MakeJob, defaults: ClusterDefaults, size: int, pools: int, words: str
) -> None:
    with pytest.raises(SpecError, match="shorten the texts, options and templates") as refusal:
        rendered(large(make_job, size, pools), defaults)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("size", "pools", "words"),
    [
        (600_000, 1, "makes RolloutPool chain-sum-rollout-p0 1.2 MB large, of at most 1.0 MB"),
        (52_000, 12, "children 17.1 MB large, of at most 16.8 MB"),
    ],
)
def test_templates_count(
    make_job: MakeJob, defaults: ClusterDefaults, size: int, pools: int, words: str
) -> None:
    template = {"metadata": {"annotations": {"note": "x" * size}}}
    job = make_job(rollout__pools=[{"name": f"p{n}", "template": template} for n in range(pools)])
    with pytest.raises(SpecError) as refusal:
        rendered(job, defaults)
    assert words in str(refusal.value)


def test_what_is_accepted_is_within_the_limit(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    assert rendered(large(make_job, 110_000, 64), defaults) < limits.MOST_BYTES


@pytest.mark.parametrize(("size", "accepted"), [(110_000, True), (900_000, False)])
async def test_the_operator_s_memory_for_one_job_is_bounded(
    make_job: MakeJob, defaults: ClusterDefaults, server: DictionaryServer, size: int, accepted: bool
) -> None:
    """Accepted or refused: what is wanted, sent and observed shares most of its texts."""
    job = large(make_job, size, 64)
    reconciler = Reconciler(server, defaults, clock=lambda: server.now)
    tracemalloc.start()
    try:
        for _ in range(3):
            result = await reconciler.reconcile(job)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.phase is not Phase.STALLED) == accepted
    assert bool(server.objects) == accepted
    assert peak < MOST_COPIES * limits.MOST_BYTES, f"{peak / 2**20:.0f} MiB"


async def test_nothing_of_a_job_that_is_too_large_is_written(
    make_job: MakeJob, defaults: ClusterDefaults, server: DictionaryServer
) -> None:
    reconciler = Reconciler(server, defaults, clock=lambda: server.now)
    result = await reconciler.reconcile(large(make_job, 900_000, 64))
    stalled = condition(result.status, "Stalled")
    assert stalled is not None
    assert (result.phase, stalled.reason) == (Phase.STALLED, "InvalidTemplate")
    assert not server.objects
