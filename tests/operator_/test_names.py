"""Names of children: those of two jobs never meet, unless the operator refuses one of the jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from dictionary_server import DictionaryServer
from hypothesis import given, settings
from hypothesis import strategies as st
from small_job import make_small_job

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.reconcile import Reconciler

DEFAULTS = ClusterDefaults("nats://nats:4222", "/w", "/c", "/t", per_job=True)

WORDS = ("a", "b", "1", "audit", "config", "coordinator", "reward", "rollout", "trainer", "worker", "workers")
"""What names are made of, among them every word that the operator puts into a name."""
LABELS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("-".join)


def job(name: str, *pools: str) -> RLJob:
    made = make_small_job(
        rollout__pools=[{"name": pool} for pool in pools],
        trainer={"numNodes": 2, "checkpoint": {"uri": "/checkpoints"}},
    )
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"name": name})})


def children(made: RLJob) -> set[Ref]:
    """All that a job ever has."""
    pools = {pool.name: {"metadata": {"uid": pool.name}, "spec": {}} for pool in made.spec.rollout.pools}
    resolved = resolve_job(made, DEFAULTS)
    return {
        Ref.of(child) for attempt in (1, 11) for child in desired(resolved, Targets(attempt, 0, dict(pools)))
    }


@given(first=LABELS, second=LABELS, pools=st.tuples(LABELS, LABELS))
@settings(deadline=None, max_examples=150)
def test_children_of_two_jobs_meet_only_where_one_is_refused(
    first: str, second: str, pools: tuple[str, str]
) -> None:
    first, second = f"j-{first}"[:50].rstrip("-"), f"j-{second}"[:50].rstrip("-")
    if first == second:
        return
    short = [pool[:40].rstrip("-") for pool in pools]
    common = children(job(first, short[0])) & children(job(second, short[1]))
    assert not common or names.ambiguous(first) or names.ambiguous(second), common


def meetings() -> Iterator[tuple[str, str, str]]:
    """Two jobs and the first one's pool, of all names of a few words."""
    words = ("a", "config", "coordinator", "reward", "rollout")
    jobs = ["a", *(f"a-{'-'.join(more)}" for n in (1, 2) for more in itertools.product(words, repeat=n))]
    of = {name: children(job(name, "a", "b")) for name in jobs}
    for pool in ("a", "coordinator", "a-coordinator", "rollout-a", "a-rollout-a", "rollout-a-config"):
        mine = children(job("a", pool))
        yield from (("a", other, pool) for other in jobs if other != "a" and mine & of[other])


def test_names_that_meet_are_found_and_each_of_them_is_refused() -> None:
    found = set(meetings())
    assert ("a", "a-rollout-a", "a") in found, "the ConfigMap of the pool is that of the job"
    assert ("a", "a-rollout", "coordinator") in found, "the Deployment of the pool is the job's coordinator"
    assert ("a", "a-rollout-a", "a-rollout-a") in found, "two pools"
    assert not {other for _, other, _ in found if not names.ambiguous(other)}


@pytest.mark.parametrize("name", ["rollout", "rollouts-a", "a-rollouts", "a-rollouts-b", "my-prerollout"])
def test_names_that_only_resemble_it_are_accepted(name: str) -> None:
    assert not names.ambiguous(name)


async def test_a_job_with_an_ambiguous_name_is_not_started_and_one_that_ran_continues() -> None:
    server = DictionaryServer()
    reconciler = Reconciler(server, DEFAULTS, clock=lambda: server.now)
    refused = await reconciler.reconcile(job("a-rollout-b", "cpu"))
    stalled = condition(refused.status, "Stalled")
    assert stalled is not None
    assert (refused.phase, stalled.reason) == (Phase.STALLED, "InvalidName")
    assert "a job 'a'" in stalled.message
    assert not server.objects
    server.stored = server.stored.model_copy(update={"trainer_attempt": 1})
    continued = await reconciler.reconcile(job("a-rollout-b", "cpu"))
    assert continued.phase is Phase.RUNNING
    assert server.objects


def test_two_pools_whose_names_are_cut_to_the_same_are_refused() -> None:
    long = "p" * 40
    name = "a-job-with-a-name"
    (cut,) = {ref.name for ref in children(job(name, long)) if ref.kind == "RolloutPool"}
    crafted = cut.removeprefix(f"{name}-rollout-")
    with pytest.raises(SpecError, match=f"would both have the RolloutPool {cut}: rename one"):
        children(job(name, long, crafted))
