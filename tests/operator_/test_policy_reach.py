"""Who reaches which port, where the NetworkPolicies of an installation and of its jobs are enforced.

The rules are those that the nodes of the end-to-end tests get (`e2e.harness.network_policies`); here they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from e2e.harness.kubectl import Kubectl
from e2e.harness.network_policies import CHAIN, render
from installation import MANIFESTS, Object, of_kind, rendered
from small_job import MakeJob

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.isolation import command_policies, network_policy
from rljob_operator.children.resolved_job import resolve_job

pytestmark = pytest.mark.smoke

SYSTEM, TEAM = "rljob-system", "default"
CLUSTER = MANIFESTS / "overlays/nats-cluster"
CLIENTS, ROUTES, MONITOR, METRICS, API, NAMES = 4222, 6222, 8222, 8080, 443, 53


def named(name: str, namespace: str = SYSTEM) -> tuple[str, dict[str, str]]:
    return namespace, {"app.kubernetes.io/name": name}


def of_job(name: str) -> tuple[str, dict[str, str]]:
    return TEAM, {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "chain-sum"}


def worker(role: str) -> tuple[str, dict[str, str]]:
    return TEAM, {"rljob.dev/job": "chain-sum", "rljob.dev/role": role}


PODS: Mapping[str, tuple[str, dict[str, str]]] = {
    "nats-0": named("nats"),
    "nats-1": named("nats"),
    "operator": named("rljob-operator"),
    "setup": named("rljob-nats-setup"),
    "neighbour": named("somebody"),
    "rollout": worker("rollout"),
    "reward": worker("reward"),
    "trainer-0": worker("trainer"),
    "trainer-1": worker("trainer"),
    "audit": of_job("rljob-audit"),
    "backup": of_job("rljob-backup"),
    "restore": of_job("rljob-restore"),
    "stranger": named("nats", TEAM),
    "dns": ("kube-system", {}),
}
ELSEWHERE = "203.0.113.9"


@dataclass(frozen=True)
class Filter:
    """The rules of a node, and the addresses of the pods."""

    rules: tuple[str, ...]
    addresses: Mapping[str, str]

    def passes(self, source: str, target: str, port: int) -> bool:
        """Whether a new TCP connection passes; a target that is no pod is somewhere else."""
        sender, receiver = self.addresses[source], self.addresses.get(target, ELSEWHERE)
        directions = ((f"-s {sender}", f"-d {receiver}"), (f"-d {receiver}", f"-s {sender}"))
        return all(self._returns(own, other, port) for own, other in directions)

    def _returns(self, own: str, other: str, port: int) -> bool:
        jump = re.compile(rf"-A {CHAIN} {re.escape(own)} -j (\S+)")
        chains = [match[1] for rule in self.rules if (match := jump.fullmatch(rule))]
        return all(self._allows(chain, other, port) for chain in chains)

    def _allows(self, chain: str, other: str, port: int) -> bool:
        for rule in self.rules:
            if not rule.startswith(f"-A {chain} "):
                continue
            peer = re.search(r"-[sd] (\S+)", rule)
            number, udp = re.search(r"--dport (\d+)", rule), "-p udp" in rule
            reached = (peer is None or peer[0] == other) and (number is None or int(number[1]) == port)
            if reached and not udp:
                return rule.endswith("RETURN")
        return True


@pytest.fixture(params=["one server", "three servers"])
def installed_filter(
    request: pytest.FixtureRequest, kubectl: Kubectl, make_job: MakeJob, defaults: ClusterDefaults
) -> tuple[Filter, bool]:
    """The rules of an installation with a job, and whether it has several servers."""
    several = request.param == "three servers"
    policies: list[Object] = of_kind(rendered(kubectl, CLUSTER if several else MANIFESTS), "NetworkPolicy")
    ours = replace(defaults, nats_url="tls://nats.rljob-system:4222", weights_uri="pvc://w/w")
    ours = replace(ours, checkpoint_uri="pvc://w/c", trainer_log_uri="")
    job = resolve_job(make_job(), ours)
    policies += [network_policy(job), *command_policies(job)]
    addresses = {name: f"10.0.0.{number}" for number, name in enumerate(PODS, 1)}
    pods = [
        {
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {},
            "status": {"podIP": addresses[name], "phase": "Running"},
        }
        for name, (namespace, labels) in PODS.items()
    ]
    spaces = [
        {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
        for name in (SYSTEM, TEAM, "kube-system")
    ]
    return Filter(tuple(render(policies, pods, spaces).splitlines()), addresses), several


def test_only_who_needs_it_reaches_a_port(installed_filter: tuple[Filter, bool]) -> None:
    filtered, several = installed_filter
    clients = {"operator", "rollout", "reward", "trainer-0", "trainer-1", "audit", "backup", "restore"}
    reaching = {
        port: {name for name in PODS if name != "nats-0" and filtered.passes(name, "nats-0", port)}
        for port in (CLIENTS, ROUTES, MONITOR)
    }
    assert reaching == {CLIENTS: clients, ROUTES: {"nats-1"} if several else set(), MONITOR: set()}
    # A Prometheus may be anywhere; nobody else's pod listens to anybody.
    free = {"stranger", "dns"}
    assert {name for name in PODS if filtered.passes(name, "operator", METRICS)} >= free
    for other in ("setup", "neighbour", "audit", "backup", "restore"):
        assert not {name for name in PODS if filtered.passes(name, other, METRICS)}
    assert {name for name in PODS if filtered.passes(name, "rollout", METRICS)} <= {"trainer-0", "trainer-1"}
    assert filtered.passes("trainer-0", "trainer-1", METRICS)


def test_nobody_of_ours_reaches_more_than_it_needs(installed_filter: tuple[Filter, bool]) -> None:
    filtered, several = installed_filter
    ports = (CLIENTS, ROUTES, METRICS, API, NAMES, 80)
    reached = {
        name: {port for port in ports if filtered.passes(name, "elsewhere", port)}
        for name in PODS
        if name not in {"nats-1", "stranger", "dns"}
    }
    # The first two ask the API server, which has no pods to select; the others may write to any object store.
    free = {"operator", "setup", "backup", "restore"}
    assert reached == {name: {API} if name in free else set() for name in reached}
    assert not {name for name in ("audit", "backup", "restore") if filtered.passes(name, "rollout", METRICS)}
    ours = ("operator", "setup", "rollout", "reward", "trainer-0", "audit", "backup", "restore")
    for name in (*ours, *(["nats-0"] if several else [])):
        assert filtered.passes(name, "dns", NAMES)
    assert not filtered.passes("neighbour", "dns", NAMES)
    assert not filtered.passes("reward", "rollout", METRICS)
    assert not filtered.passes("operator", "rollout", METRICS)
