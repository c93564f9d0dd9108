"""A job beside objects that have its children's names, on a dictionary of objects: `test_strangers` is on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from dictionary_server import DictionaryServer

from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.reconcile import Reconciler

MakeJob = Callable[..., RLJob]


class Labelled(DictionaryServer):
    """Lists the objects with the job's label alone, as an API server does."""

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        return [m for m in await super().children(job) if names.LABEL_JOB in m["metadata"].get("labels", {})]


def config_map(job: RLJob, name: str, **labels: str) -> Manifest:
    metadata = {"name": name, "namespace": job.metadata.namespace, "uid": "users", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"own": "text"}}


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
async def test_a_users_config_map_with_the_viewers_name_is_left_alone_and_the_job_runs(
    make_job: MakeJob, defaults: ClusterDefaults, *, labelled: bool, concurrent: bool
) -> None:
    job, server = make_job(), Labelled()
    reconciler = Reconciler(
        server, replace(defaults, per_job=True), clock=lambda: server.now, concurrent=concurrent
    )
    name = job.metadata.name
    users = config_map(job, names.viewer(name), **({names.LABEL_JOB: name} if labelled else {}))
    ref = Ref.of(users)
    server.objects[ref] = users

    async def settled() -> Any:
        for _ in range(12):
            result = await reconciler.reconcile(job)
            if result.actions == 0:
                return result
        pytest.fail("it does not settle")

    for _ in range(2):
        assert (await settled()).phase is Phase.RUNNING
        server.pods_ready()
    assert server.objects[ref] == users
    assert server.of("Job")
    assert server.events.count(("Warning", "NameTaken")) == 1
    del server.objects[ref]
    assert (await settled()).phase is Phase.RUNNING
    assert "own" not in server.objects[ref]["data"]


async def test_a_job_waits_for_every_other_name(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    job, server = make_job(), Labelled()
    reconciler = Reconciler(server, replace(defaults, per_job=True), clock=lambda: server.now)
    users = config_map(job, names.audit(job.metadata.name))
    server.objects[Ref.of(users)] = users
    assert (await reconciler.reconcile(job)).phase is Phase.STALLED
