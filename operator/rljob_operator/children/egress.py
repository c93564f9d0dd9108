"""What a job's pods may connect to, as rules of a NetworkPolicy: what the job names, and nothing else.

| destination | for | from |
|---|---|---|
| name servers of the cluster: port 53 of pods in `kube-system` and of link-local addresses | all | always |
| the NATS server: its port, in its namespace or at its address | all | `spec.nats.url`, or the operator's |
| HTTPS anywhere, for object stores (`s3://`, `gs://`) | all | URIs of weights and checkpoints |
| the same, as a backup may be anywhere | backup, restore | always |
| servers of engines (`http://`, `https://`) | workers | options of `spec.rollout.engine` and of pools |
| other ranks of the trainer | workers | always |
| whatever else | all | `spec.networking.egress`, and the administrator's rules for all jobs |

A NetworkPolicy knows addresses and pods, no host names. A host of one or two labels, or one that ends in `.svc` or
`.svc.cluster.local`, is taken for a Service: its namespace is allowed, by its port. Any other name may have any
address. Claims need no rule: the node mounts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Any

from rljob_core.spec import EgressSpec
from rljob_operator import names
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

_URL = re.compile(
    r"^(?P<scheme>[a-z0-9]+)://(?:[^/@]*@)?(?P<host>\[[^\]]+\]|[^:/?#,\s]+)(?::(?P<port>\d+))?", re.ASCII
)
_PORTS = {"http": 80, "https": 443, "nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_SERVICE = re.compile(r"^[^.]+(\.(?P<namespace>[^.]+)(\.svc(\.cluster\.local)?)?)?\.?$")
_OBJECT_STORES = ("s3://", "gs://", "gcs://")
_HTTPS = 443
_NAME_SERVERS: Manifest = {
    "to": [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
        {"ipBlock": {"cidr": "169.254.0.0/16"}},  # NodeLocal DNSCache, and name servers of clouds
    ],
    "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
}


def worker_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for workers, without duplicates, in an order that depends on the job alone."""
    ranks = {"to": [{"podSelector": {"matchLabels": names.identity(job.metadata.name, Role.TRAINER)}}]}
    return _rules(job, *(_to_server(url) for url in _servers(job)), ranks, stores=False)


def audit_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for audits."""
    return _rules(job, stores=False)


def backup_egress(job: ResolvedJob) -> list[Manifest]:
    """The rules for backups and restores, which reach any object store."""
    return _rules(job, stores=True)


def _rules(job: ResolvedJob, *own: Manifest, stores: bool) -> list[Manifest]:
    """The rules that all pods have, with some of their own, and HTTPS even if the job names no object store."""
    stores = stores or any(uri.startswith(_OBJECT_STORES) for uri in _uris(job))
    rules = [
        _NAME_SERVERS,
        *(_to_server(url) for url in job.nats_url.split(",")),
        *([{"ports": [_tcp(_HTTPS)]}] if stores else []),
        *own,
        *(_to_place(place) for place in job.spec.networking.egress),
        *job.defaults.egress,
    ]
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]


def _uris(job: ResolvedJob) -> Iterable[str]:
    return (job.config.weights_uri, job.config.checkpoint_uri, job.config.trainer_log_uri)


def _servers(job: ResolvedJob) -> list[str]:
    """URLs of HTTP servers in the options of engines, sorted."""
    rollout = job.spec.rollout
    options = (rollout.engine.options, *(pool.engine.options for pool in rollout.pools))
    return sorted({text for text in _texts(options) if text.startswith(("http://", "https://"))})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _to_server(url: str) -> Manifest:
    """The rule that allows connections to a URL's host and port; a URL that cannot be read allows nothing."""
    found = _URL.match(url.strip())
    if found is None:
        return {"to": [{"ipBlock": {"cidr": "255.255.255.255/32"}}]}
    ports = [_tcp(int(found["port"] or _PORTS.get(found["scheme"], _HTTPS)))]
    host = found["host"].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        service = _SERVICE.match(host)
        if service is None:
            return {"ports": ports}
        return {"to": [_pods_of(service["namespace"])], "ports": ports}
    return {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": ports}


def _to_place(place: EgressSpec) -> Manifest:
    peer = {"ipBlock": {"cidr": place.cidr}} if place.cidr is not None else _pods_of(place.namespace)
    return {"to": [peer], **({"ports": [_tcp(port) for port in place.ports]} if place.ports else {})}


def _pods_of(namespace: str | None) -> Manifest:
    """The peer that is all pods of a namespace; None: of the job's own."""
    if namespace is None:
        return {"podSelector": {}}
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
