"""Children that are applied together: what pods need is there before what makes pods."""

from __future__ import annotations

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Manifest
from rljob_operator.reconcile.reconcile import Reconciler


async def test_what_pods_need_is_there_before_what_makes_them(
    make_job: MakeJob, defaults: ClusterDefaults, server: DictionaryServer
) -> None:
    reconciler = Reconciler(server, defaults, clock=lambda: server.now, concurrent=True)
    await reconciler.reconcile(make_job())
    applied = [line.split()[1] for line in server.log if line.startswith("apply ")]
    first = set(applied[: applied.index("Deployment")])
    assert {"ServiceAccount", "NetworkPolicy", "ConfigMap", "RolloutPool"} <= first
    assert set(applied) - first == {"Deployment", "Job"}
    await reconciler.reconcile(make_job())  # what a pool owns follows once its uid is known
    assert len(server.of("Deployment")) == 3


class Refusing(DictionaryServer):
    """Takes no ConfigMap."""

    async def apply(self, manifest: Manifest) -> None:
        if manifest["kind"] == "ConfigMap":
            raise ConnectionError("refused")
        await super().apply(manifest)


async def test_no_pod_is_made_when_something_that_it_needs_could_not_be(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    server = Refusing()
    with pytest.raises(ConnectionError):
        await Reconciler(server, defaults, clock=lambda: server.now, concurrent=True).reconcile(make_job())
    assert not server.of("Deployment")
    assert server.of("ServiceAccount")
