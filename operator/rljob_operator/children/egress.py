"""What a job's pods may connect to, as rules of a NetworkPolicy: what the job names, and nothing else.

| destination | for | from |
|---|---|---|
| name servers of the cluster: port 53 of pods in `kube-system` and of link-local addresses | all | always |
| the NATS server: its port, in its namespace or at its address | all | `spec.nats.url`, or the operator's |
| HTTPS anywhere, for object stores and hubs | all | `s3://`, `gs://` and `hf://` of model, data, weights, checkpoints |
| the same, as a backup may be anywhere | backup, restore | always |
| servers of engines (`http://`, `https://`) | workers | options of `spec.rollout.engine` and of pools |
| HTTPS anywhere, and servers of trackers (`http://`, `https://`) | trackers | options of `spec.trackers` |
| other ranks of the trainer | workers | always |
| whatever else | all | `spec.networking.egress`, and the administrator's rules for all jobs |

A NetworkPolicy knows addresses and pods, no host names. A host of one or two labels, or one that ends in `.svc` or
`.svc.cluster.local`, is taken for a Service: its namespace is allowed, by its port. Any other name may have any
address. Claims need no rule: the node mounts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljob_core.spec import EgressSpec
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.server_rules import HTTPS, pods_of, tcp, to_server
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

EPISODES = 7450
"""The port of environment pods."""
_NAME_SERVERS: Manifest = {
    "to": [
        {"namespaceSelector": {"matchLabels": {names.LABEL_NAMESPACE: "kube-system"}}},
        {"ipBlock": {"cidr": "169.254.0.0/16"}},  # NodeLocal DNSCache, and name servers of clouds
    ],
    "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
}


def worker_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for workers, without duplicates, in an order that depends on the job alone."""
    environment = job.spec.rollout.environment if job.defaults.containers else None
    pods = {
        "to": [{"podSelector": {"matchLabels": names.identity(job.metadata.name, Role.ENVIRONMENT)}}],
        "ports": [tcp(EPISODES)],
    }
    ranks = {"to": [{"podSelector": {"matchLabels": names.identity(job.metadata.name, Role.TRAINER)}}]}
    rollout = job.spec.rollout
    servers = _servers([rollout.engine.options, *(pool.engine.options for pool in rollout.pools)])
    own = [*map(to_server, servers), ranks, *([] if environment is None else [pods])]
    return _rules(job, *own, stores=False)


def environment_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for environment pods that may open connections: name servers, and what `networking.egress` names.

    And what the cluster's administrator allows every job, but neither NATS nor object stores.
    """
    return _unique([_NAME_SERVERS, *_allowed(job)])


def tracker_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for trackers, besides those for all workers: servers that their options name, and HTTPS anywhere.

    Their pods run no code that a model has written.
    """
    servers = _servers([tracker.options for tracker in job.spec.trackers])
    return _unique([{"ports": [tcp(HTTPS)]}, *map(to_server, servers)])


def audit_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for audits."""
    return _rules(job, stores=False)


def backup_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for backups and restores, which reach any object store."""
    return _rules(job, stores=True)


def _rules(job: ResolvedJob, *own: Manifest, stores: bool) -> list[Manifest]:
    """The rules that all pods have, with some of their own, and HTTPS even if the job names no object store."""
    stores = stores or job.uses_object_store or bool(job.config.downloads)
    rules = [
        _NAME_SERVERS,
        *(to_server(url) for url in job.nats_url.split(",")),
        *([{"ports": [tcp(HTTPS)]}] if stores else []),
        *own,
        *_allowed(job),
    ]
    return _unique(rules)


def _allowed(job: ResolvedJob) -> list[Manifest]:
    """What the job, and the cluster's administrator for every job, allow besides."""
    return [*map(_to_place, job.spec.networking.egress), *job.defaults.egress]


def _unique(rules: Sequence[Manifest]) -> list[Manifest]:
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]


def _servers(options: Any) -> list[str]:
    """URLs of HTTP servers in free-form options, sorted."""
    return sorted({text for text in storage.texts(options) if text.startswith(("http://", "https://"))})


def _to_place(place: EgressSpec) -> Manifest:
    peer = {"ipBlock": {"cidr": place.cidr}} if place.cidr is not None else pods_of(place.namespace)
    return {"to": [peer], **({"ports": [tcp(port) for port in place.ports]} if place.ports else {})}
