"""Actions lead to what is desired, from any state, and then there are none."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.plan import Apply, Delete, plan

MakeJob = Callable[..., RLJob]

SPECS = st.fixed_dictionaries(
    {
        "rollout__pools": st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).flatmap(
            lambda names: st.tuples(
                *(st.fixed_dictionaries({"name": st.just(n), "replicas": st.integers(0, 3)}) for n in names)
            ).map(list)
        ),
        "reward__replicas": st.integers(1, 3),
        "rollout__sampling__temperature": st.sampled_from([0.5, 1.0]),
        "coordinator__template": st.sampled_from([None, {"spec": {"nodeSelector": {"a": "b"}}}]),
    }
)
STATES = st.tuples(SPECS, st.one_of(st.none(), st.integers(1, 3)))
FIXTURES = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)


async def settle(
    server: Any, job: RLJob, defaults: ClusterDefaults, attempt: int | None, *, running: bool = True
) -> None:
    """Act until there is nothing to do; pods go with what made them."""
    for _ in range(12):
        observed = server.observe(job)
        wanted = desired(resolve_job(job, defaults), Targets(attempt, 0, observed.pools)) if running else ()
        actions = plan(observed, wanted)
        await server.do(actions)
        if not actions:
            return
    pytest.fail("it does not settle")


@given(states=st.lists(STATES, min_size=2, max_size=4), vandal=st.randoms(use_true_random=False))
@FIXTURES
def test_from_any_state_it_converges_to_what_is_desired(
    make_job: MakeJob, defaults: ClusterDefaults, server: Any, states: list[Any], vandal: Any
) -> None:
    server = type(server)()  # each of Hypothesis' examples needs its own

    async def scenario() -> None:
        *history, last = states
        for changes, attempt in history:
            await settle(server, make_job(**changes), defaults, attempt)
        vandalise(server, vandal)
        changes, attempt = last
        job = make_job(**changes)
        await settle(server, job, defaults, attempt)
        exact = desired(resolve_job(job, defaults), Targets(attempt, 0, server.observe(job).pools))
        assert set(server.objects) == {Ref.of(manifest) for manifest in exact}
        for manifest in exact:
            found = copy.deepcopy(server.objects[Ref.of(manifest)])
            if manifest["kind"] != "Job":  # made once, of what was wanted then
                assert found.get("spec") == manifest.get("spec")
                assert found.get("data") == manifest.get("data")

    asyncio.run(scenario())


def vandalise(server: Any, random: Any) -> None:
    """Others delete, rescale and edit."""
    for ref in list(server.objects):
        harm = random.choice(["none", "delete", "scale", "edit"])
        manifest = server.objects[ref]
        if harm == "delete":
            del server.objects[ref]
        elif harm == "scale" and ref.kind == "Deployment":
            manifest["spec"]["replicas"] = 77
        elif harm == "edit" and ref.kind == "Deployment":
            manifest["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep"]


async def test_defaults_that_a_server_adds_change_nothing(
    make_job: MakeJob, defaults: ClusterDefaults, server: Any
) -> None:
    job = make_job(
        coordinator__template={
            "spec": {"containers": [{"name": "coordinator", "resources": {"limits": {"cpu": "1000m"}}}]}
        }
    )
    await settle(server, job, defaults, 1)
    for manifest in server.objects.values():
        manifest["metadata"] |= {"resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
        if manifest["kind"] == "Deployment":
            template = manifest["spec"]["template"]["spec"]
            template |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
            template.pop("imagePullSecrets")  # a server drops empty lists
            container = template["containers"][0]
            container["imagePullPolicy"] = "Always"
            if "resources" in container:
                container["resources"]["limits"]["cpu"] = "1"
    observed = server.observe(job)
    assert plan(observed, desired(resolve_job(job, defaults), Targets(1, 0, observed.pools))) == ()


async def test_the_trainer_goes_first_and_the_coordinator_last(
    make_job: MakeJob, defaults: ClusterDefaults, server: Any
) -> None:
    job = make_job()
    await settle(server, job, defaults, 1)
    server.pods_ready()
    order: list[str] = []
    while server.objects:
        actions = plan(server.observe(job), ())
        roles = {server.objects[a.ref]["metadata"]["labels"].get("rljob.dev/role") for a in actions}
        assert len(roles) == 1, "one role at a time"
        await server.do(actions)
        assert plan(server.observe(job), ()) == (), "nothing more before its pods are gone"
        (role,) = roles
        order.append(role or "configuration")
        server.pods_gone(role or "")
    assert order == ["trainer", "rollout", "reward", "coordinator", "configuration"]


async def test_a_new_attempt_waits_until_nothing_of_the_old_one_is_left(
    make_job: MakeJob, defaults: ClusterDefaults, server: Any
) -> None:
    job = make_job()
    await settle(server, job, defaults, 1)
    server.pods_ready()

    def next_actions() -> list[Any]:
        observed = server.observe(job)
        return list(plan(observed, desired(resolve_job(job, defaults), Targets(2, 1, observed.pools))))

    (delete,) = next_actions()
    ref = Ref("Job", "default", "chain-sum-trainer-1")
    assert delete == Delete(ref, server.objects[ref]["metadata"]["uid"], "not wanted")
    await server.do([delete])
    assert next_actions() == []
    server.pods_gone("trainer")
    (create,) = next_actions()
    assert isinstance(create, Apply)
    assert Ref.of(create.manifest).name == "chain-sum-trainer-2"


async def test_what_is_on_its_way_out_is_waited_for(
    make_job: MakeJob, defaults: ClusterDefaults, server: Any
) -> None:
    job = make_job()
    await settle(server, job, defaults, 1)
    ref = Ref("Deployment", "default", "chain-sum-reward")
    server.objects[ref] = copy.deepcopy(server.objects[ref])
    server.objects[ref]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    observed = server.observe(make_job(reward__replicas=3))
    wanted = desired(resolve_job(make_job(reward__replicas=3), defaults), Targets(1, 0, observed.pools))
    assert ref not in {Ref.of(a.manifest) for a in plan(observed, wanted) if isinstance(a, Apply)}


async def test_what_others_inject_into_a_pod_template_is_left_alone(
    make_job: MakeJob, defaults: ClusterDefaults, server: Any
) -> None:
    job = make_job()
    await settle(server, job, defaults, 1)
    deployment = server.objects[Ref("Deployment", "default", "chain-sum-coordinator")]
    pod = deployment["spec"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "mesh", "image": "proxy"})
    pod["containers"][1]["env"].append({"name": "TRACE", "value": "1"})
    pod["volumes"].append({"name": "mesh", "emptyDir": {}})
    observed = server.observe(job)
    wanted = desired(resolve_job(job, defaults), Targets(1, 0, observed.pools))
    assert plan(observed, wanted) == ()
    pod["containers"][1]["env"][0]["value"] = "/elsewhere"
    assert [a.reason for a in plan(server.observe(job), wanted)] == ["altered by others"]
