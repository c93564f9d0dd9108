"""What a job's NetworkPolicy lets its workers connect to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_job import MakeJob

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.isolation import command_policies, network_policy
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.port import Manifest

ANYWHERE = None
CLUSTER_NAMES = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


def namespace(name: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def address(cidr: str) -> Manifest:
    return {"ipBlock": {"cidr": cidr}}


def rule(peer: Manifest | None, *ports: int) -> Manifest:
    found: Manifest = {} if peer is ANYWHERE else {"to": [peer]}
    return {**found, "ports": [{"protocol": "TCP", "port": port} for port in ports]} if ports else found


OWN_TRAINER = rule(
    {"podSelector": {"matchLabels": {"rljob.dev/job": "chain-sum", "rljob.dev/role": "trainer"}}}
)


@pytest.fixture
def shared(defaults: ClusterDefaults) -> ClusterDefaults:
    """Of a cluster with our NATS server, whose claims hold weights."""
    return replace(
        defaults,
        nats_url="nats://nats.rljob-system:4222",
        weights_uri="pvc://rljob/weights",
        checkpoint_uri="pvc://rljob/checkpoints",
        trainer_log_uri="",
    )


def egress(make_job: MakeJob, defaults: ClusterDefaults, **changes: Any) -> list[Manifest]:
    """All rules but the first, which is the same for every job."""
    policy = network_policy(resolve_job(make_job(**changes), defaults))["spec"]
    assert policy["podSelector"] == {"matchLabels": {"rljob.dev/job": "chain-sum"}}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    names, *others = policy["egress"]
    assert names == {"to": [namespace("kube-system"), address("169.254.0.0/16")], "ports": CLUSTER_NAMES}
    return others


def test_a_job_on_claims_reaches_nats_and_its_own_trainer(make_job: MakeJob, shared: ClusterDefaults) -> None:
    assert egress(make_job, shared) == [rule(namespace("rljob-system"), 4222), OWN_TRAINER]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://nats:4222", rule({"podSelector": {}}, 4222)),
        ("nats://nats.team", rule(namespace("team"), 4222)),
        ("tls://nats.team.svc:4443", rule(namespace("team"), 4443)),
        ("nats://user:secret@nats.team.svc.cluster.local:4222", rule(namespace("team"), 4222)),
        ("nats://192.0.2.7:4222", rule(address("192.0.2.7/32"), 4222)),
        ("wss://[2001:db8::7]", rule(address("2001:db8::7/128"), 443)),
        ("nats://nats.example.com:4222", rule(ANYWHERE, 4222)),
    ],
)
def test_a_server_is_allowed_where_it_is(
    make_job: MakeJob, shared: ClusterDefaults, url: str, expected: Manifest
) -> None:
    assert egress(make_job, shared, nats__url=url) == [expected, OWN_TRAINER]


def test_of_several_servers_all_are_allowed(make_job: MakeJob, shared: ClusterDefaults) -> None:
    url = "nats://192.0.2.7:4222,nats://192.0.2.8:4222"
    assert egress(make_job, shared, nats__url=url) == [
        rule(address("192.0.2.7/32"), 4222),
        rule(address("192.0.2.8/32"), 4222),
        OWN_TRAINER,
    ]


@pytest.mark.parametrize("field", ["weights__uri", "trainer__checkpoint__uri"])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_object_store_is_reached_by_https(
    make_job: MakeJob, shared: ClusterDefaults, field: str, scheme: str
) -> None:
    rules = egress(make_job, shared, **{field: f"{scheme}://bucket/folder"})
    assert rules == [rule(namespace("rljob-system"), 4222), rule(ANYWHERE, 443), OWN_TRAINER]


def test_servers_of_engines_are_reached(make_job: MakeJob, shared: ClusterDefaults) -> None:
    rules = egress(
        make_job,
        shared,
        rollout__engine={"name": "HTTP", "options": {"url": "http://vllm:8000", "staging": "/staging"}},
        rollout__pools=[
            {"name": "one"},
            {"name": "other", "engine": {"options": {"urls": ["https://vllm.example.com/v1"]}}},
        ],
    )
    assert rules == [
        rule(namespace("rljob-system"), 4222),
        rule({"podSelector": {}}, 8000),
        rule(ANYWHERE, 443),
        OWN_TRAINER,
    ]


def test_what_the_job_and_the_administrator_name_is_reached(
    make_job: MakeJob, shared: ClusterDefaults
) -> None:
    proxy = rule(address("10.9.0.1/32"), 3128)
    places = [{"namespace": "minio", "ports": [9000, 9001]}, {"cidr": "10.2.0.0/16"}]
    rules = egress(make_job, replace(shared, egress=(proxy,)), networking__egress=places)
    assert rules == [
        rule(namespace("rljob-system"), 4222),
        OWN_TRAINER,
        rule(namespace("minio"), 9000, 9001),
        rule(address("10.2.0.0/16")),
        proxy,
    ]


def test_nothing_is_allowed_twice(make_job: MakeJob, shared: ClusterDefaults) -> None:
    rules = egress(make_job, shared, networking__egress=[{"namespace": "rljob-system", "ports": [4222]}] * 2)
    assert rules == [rule(namespace("rljob-system"), 4222), OWN_TRAINER]


def test_no_job_reaches_everything_unless_it_says_so(make_job: MakeJob, shared: ClusterDefaults) -> None:
    assert all(rules != {} for rules in egress(make_job, shared))
    assert rule(address("0.0.0.0/0")) in egress(make_job, shared, networking__egress=[{"cidr": "0.0.0.0/0"}])


def of_commands(make_job: MakeJob, defaults: ClusterDefaults, **changes: Any) -> dict[str, list[Manifest]]:
    """By what a pod runs, all rules but the first."""
    found = {}
    for policy in command_policies(resolve_job(make_job(**changes), defaults)):
        spec = policy["spec"]
        assert spec["podSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "chain-sum"}
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in spec
        (which,) = spec["podSelector"]["matchExpressions"]
        assert (which["key"], which["operator"]) == ("app.kubernetes.io/name", "In")
        names, *others = spec["egress"]
        assert names == {"to": [namespace("kube-system"), address("169.254.0.0/16")], "ports": CLUSTER_NAMES}
        found |= dict.fromkeys(which["values"], others)
    return found


def test_audits_and_backups_reach_nats_and_storage(make_job: MakeJob, shared: ClusterDefaults) -> None:
    engine = {"name": "HTTP", "options": {"url": "http://vllm:8000", "staging": "/staging"}}
    server, stores = rule(namespace("rljob-system"), 4222), rule(ANYWHERE, 443)
    assert of_commands(make_job, shared, rollout__engine=engine) == {
        "rljob-audit": [server],
        "rljob-backup": [server, stores],
        "rljob-restore": [server, stores],
    }
    for field in ("weights__uri", "trainer__checkpoint__uri"):
        rules = of_commands(make_job, shared, **{field: "s3://bucket/folder"})
        assert list(rules.values()) == [[server, stores]] * 3


def test_audits_and_backups_reach_what_the_job_and_the_administrator_name(
    make_job: MakeJob, shared: ClusterDefaults
) -> None:
    proxy = rule(address("10.9.0.1/32"), 3128)
    places = [{"namespace": "minio", "ports": [9000]}]
    rules = of_commands(make_job, replace(shared, egress=(proxy,)), networking__egress=places)
    assert all(found[-2:] == [rule(namespace("minio"), 9000), proxy] for found in rules.values())
