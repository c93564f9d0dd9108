"""The tokens of a job's NATS credentials are renewed before they expire, and nothing is written in between."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import NOW, DictionaryServer
from small_job import MakeJob
from test_nats_credentials import claims_of
from test_worker_pod import ISSUER

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.decisions.status import Phase
from rljob_operator.nats.permissions import Holder
from rljob_operator.nats.token_times import token_times
from rljob_operator.reconcile.outcome import Pass
from rljob_operator.reconcile.reconcile import Reconciler

LIFETIME = 9000
TOKENS = "apply ConfigMap chain-sum-nats-tokens"
ROLES = {"coordinator", "reward", "rollout", "trainer"}


# ---------------------------------------------------------------------------------------------- when


def times(seconds: float, uid: str = "u-1") -> tuple[float, float]:
    """When the tokens of a moment expire and are renewed, as seconds after that moment."""
    now = NOW + timedelta(seconds=seconds)
    found = token_times(uid, lifetime=LIFETIME, now=now)
    return found.expires - now.timestamp(), (found.renewed_at - now).total_seconds()


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.0, 1234.0, 6000.0, 1e8])
def test_a_third_of_the_lifetime_is_left_whenever_tokens_are_written(seconds: float) -> None:
    expires, renewed = times(seconds)
    assert LIFETIME / 3 < expires <= LIFETIME
    assert 0 < renewed <= LIFETIME * 2 / 3
    assert expires - renewed == LIFETIME / 3


def test_tokens_are_the_same_until_they_are_renewed() -> None:
    first = token_times("u-1", lifetime=LIFETIME, now=NOW)
    last = first.renewed_at - timedelta(seconds=0.001)
    assert token_times("u-1", lifetime=LIFETIME, now=last) == first
    after = token_times("u-1", lifetime=LIFETIME, now=first.renewed_at)
    assert after.expires == first.expires + LIFETIME * 2 // 3


def test_two_jobs_are_renewed_at_different_times() -> None:
    assert len({times(0, f"u-{number}") for number in range(20)}) > 10


@pytest.mark.parametrize("lifetime", [1, 2, 3])
def test_the_shortest_lifetime_renews_every_second(lifetime: int) -> None:
    found = token_times("u-1", lifetime=lifetime, now=NOW)
    assert found.renewed_at > NOW
    assert found.expires > NOW.timestamp()


# ---------------------------------------------------------------------------------------------- by whom


class World:
    """One job's reconciles, at times that the test chooses."""

    def __init__(self, defaults: ClusterDefaults) -> None:
        self.server = DictionaryServer()
        self._defaults = dataclasses.replace(
            defaults, issuer=ISSUER, per_job=True, containers=True, token_seconds=LIFETIME
        )
        self.restart()

    def restart(self, **changes: Any) -> None:
        """Another process of the operator takes over."""
        defaults = dataclasses.replace(self._defaults, **changes)
        self.reconciler = Reconciler(self.server, defaults, clock=lambda: self.server.now)

    async def settle(self, job: RLJob) -> Pass:
        """Reconcile until there is nothing to do."""
        while True:
            self.server.pods_ready()
            done = await self.reconciler.reconcile(job)
            if not done.actions:
                return done

    async def writes(self, job: RLJob) -> list[str]:
        """What the next pass writes, besides the status."""
        self.server.log.clear()
        await self.reconciler.reconcile(job)
        return [line for line in self.server.log if line != "status"]

    def claims(self) -> dict[str, Any]:
        """What the roles' tokens say."""
        maps = {m["metadata"]["name"]: m for m in self.server.of("ConfigMap")}
        return {role: claims_of(jwt) for role, jwt in maps["chain-sum-nats-tokens"]["data"].items()}


@pytest.fixture
def world(defaults: ClusterDefaults) -> World:
    return World(defaults)


async def test_tokens_are_renewed_when_due_and_nothing_is_written_before(
    world: World, make_job: MakeJob
) -> None:
    job = make_job()
    done = await world.settle(job)
    due = token_times("u-1", lifetime=LIFETIME, now=NOW)
    assert done.retry_at is not None
    assert done.retry_at <= due.renewed_at
    first = world.claims()
    assert first.keys() == {*ROLES, "reader", "viewer"}
    assert {claims["exp"] for claims in first.values()} == {due.expires}
    world.server.now = due.renewed_at - timedelta(seconds=1)
    assert await world.writes(job) == []
    world.restart()
    assert await world.writes(job) == []
    world.server.now = due.renewed_at
    assert await world.writes(job) == [TOKENS]
    assert await world.writes(job) == []
    second = world.claims()
    assert {claims["exp"] for claims in second.values()} == {due.expires + LIFETIME * 2 // 3}
    same = {"exp": 0, "jti": ""}
    assert {role: c | same for role, c in first.items()} == {role: c | same for role, c in second.items()}


async def test_a_suspended_job_s_tokens_are_renewed_for_its_audit(world: World, make_job: MakeJob) -> None:
    await world.settle(make_job())
    world.server.pods_gone()
    job = make_job(suspend=True)
    for _ in range(10):
        world.server.pods_gone()
        await world.reconciler.reconcile(job)
    world.server.now = token_times("u-1", lifetime=LIFETIME, now=NOW).renewed_at
    assert await world.writes(job) == [TOKENS]
    assert await world.writes(job) == []


async def test_a_job_s_pods_outlive_a_spec_that_does_not_fit(world: World, make_job: MakeJob) -> None:
    await world.settle(make_job())
    before = set(world.server.objects)
    job = make_job(rollout__engine={"name": "Torch", "options": {"o": "x" * 1_100_000}})
    assert (await world.reconciler.reconcile(job)).phase is Phase.STALLED
    assert await world.writes(job) == []
    world.server.now = token_times("u-1", lifetime=LIFETIME, now=NOW).renewed_at
    assert await world.writes(job) == [TOKENS]
    assert await world.writes(job) == []
    assert world.claims().keys() == {*ROLES, Holder.READER, Holder.VIEWER}
    assert set(world.server.objects) == before


async def test_another_lifetime_counts_at_once(world: World, make_job: MakeJob) -> None:
    await world.settle(make_job())
    world.restart(token_seconds=300)
    assert await world.writes(make_job()) == [TOKENS]
    (expires,) = {claims["exp"] for claims in world.claims().values()}
    assert 0 < expires - NOW.timestamp() <= 300


async def test_only_a_job_that_may_be_restored_has_a_token_for_it(world: World, make_job: MakeJob) -> None:
    await world.settle(make_job(suspend=True))
    assert world.claims().keys() == {*ROLES, "reader", "restorer", "viewer"}
    await world.settle(make_job())
    assert world.claims().keys() == {*ROLES, "reader", "viewer"}


async def test_without_credentials_there_is_nothing_to_renew(make_job: MakeJob, world: World) -> None:
    await world.settle(make_job(nats__credentialsSecret="mine"))
    assert not [m for m in world.server.of("ConfigMap") if "tokens" in m["metadata"]["name"]]
