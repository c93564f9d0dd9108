"""How the harness renders NetworkPolicies to rules of a node. That nodes keep to them, test_job.py shows."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.harness.errors import ClusterError
from e2e.harness.network_policies import render

Object = dict[str, Any]
SPACES = [{"metadata": {"name": name, "labels": {"team": name}}} for name in ("a", "b")]
ESTABLISHED = "-A POLICIES -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"


def pod(name: str, address: str, *, namespace: str = "a", **spec: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"metadata": metadata, "spec": spec, "status": {"podIP": address, "phase": "Running"}}


def policy(**spec: Any) -> Object:
    return {"metadata": {"name": "one", "namespace": "a"}, "spec": {"podSelector": {}, **spec}}


def rules(*policies: Object) -> list[str]:
    """The rules that limit the pod `web` of namespace `a`, beside two others."""
    pods = [
        pod("web", "10.0.0.1"),
        pod("db", "10.0.0.2", namespace="b"),
        pod("cache", "10.0.0.3", namespace="b"),
    ]
    text = render(policies, pods, SPACES)
    assert text.startswith("*filter\n:POLICIES - [0:0]\n")
    assert text.endswith("\nCOMMIT\n")
    return [line for line in text.splitlines() if line.startswith("-A") and line != ESTABLISHED]


def test_without_policies_all_passes() -> None:
    assert rules() == []


def test_what_is_denied_is_denied_in_its_direction_alone() -> None:
    assert rules(policy(policyTypes=["Ingress"])) == [
        "-A POLICIES -d 10.0.0.1 -j POLICIES-Ingress-0",
        "-A POLICIES-Ingress-0 -j REJECT",
    ]


def test_peers_are_pods_of_namespaces_and_ranges_by_their_ports() -> None:
    databases = {
        "namespaceSelector": {"matchLabels": {"team": "b"}},
        "podSelector": {"matchLabels": {"app": "db"}},
    }
    egress = [
        {"to": [databases], "ports": [{"port": 5432}, {"protocol": "UDP", "port": 53}]},
        {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "2001:db8::/32"}}]},
        {"ports": [{"port": 443}]},
    ]
    assert rules(policy(policyTypes=["Egress"], egress=egress)) == [
        "-A POLICIES -s 10.0.0.1 -j POLICIES-Egress-0",
        "-A POLICIES-Egress-0 -d 10.0.0.2 -p tcp --dport 5432 -j RETURN",
        "-A POLICIES-Egress-0 -d 10.0.0.2 -p udp --dport 53 -j RETURN",
        "-A POLICIES-Egress-0 -d 192.0.2.0/24 -j RETURN",
        "-A POLICIES-Egress-0 -p tcp --dport 443 -j RETURN",
        "-A POLICIES-Egress-0 -j REJECT",
    ]


def test_a_peer_without_a_namespace_is_of_the_policys_own() -> None:
    assert rules(policy(ingress=[{"from": [{"podSelector": {}}]}]))[1:] == [
        "-A POLICIES-Ingress-0 -s 10.0.0.1 -j RETURN",
        "-A POLICIES-Ingress-0 -j REJECT",
    ]


def test_of_several_policies_each_allows_and_an_empty_rule_allows_all() -> None:
    one, other = policy(ingress=[{"ports": [{"port": 80}]}]), policy(ingress=[{}])
    assert rules(one, other)[1:] == [
        "-A POLICIES-Ingress-0 -p tcp --dport 80 -j RETURN",
        "-A POLICIES-Ingress-0 -j RETURN",
        "-A POLICIES-Ingress-0 -j REJECT",
    ]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ({"key": "app", "operator": "In", "values": ["web"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["web"]}, False),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "tier", "operator": "Exists"}, False),
        ({"key": "tier", "operator": "DoesNotExist"}, True),
    ],
)
def test_a_selector_may_have_expressions(expression: Object, selected: bool) -> None:
    assert bool(rules(policy(podSelector={"matchExpressions": [expression]}))) == selected


def test_pods_of_the_node_and_pods_that_ended_have_no_rules() -> None:
    ended = pod("web", "10.0.0.1")
    ended["status"]["phase"] = "Succeeded"
    pods = [ended, pod("proxy", "10.0.0.9", hostNetwork=True), pod("new", "")]
    assert "-j" not in render([policy()], pods, SPACES).replace(ESTABLISHED, "")


@pytest.mark.parametrize(
    "part",
    [
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
        {"ports": [{"port": "http"}]},
        {"ports": [{"port": 80, "endPort": 90}]},
    ],
    ids=["except", "named port", "endPort"],
)
def test_what_is_not_supported_is_refused(part: Object) -> None:
    with pytest.raises(ClusterError, match="not supported"):
        rules(policy(ingress=[part]))
