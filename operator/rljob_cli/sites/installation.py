"""The objects of a site's installation: those of `manifests/base`, with what differs at a site.

A site's operator runs pools of the hub and nothing else, so it has fewer rights. Its NATS server makes one connection,
to the Service `nats-hub`, which leads to the hub's address: the hub's certificate is for that name, whatever its
address is.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rljob_operator.cluster.port import Manifest
from rljob_operator.crd.definitions import crds
from rljob_operator.nats.accounts import BORDER_SECRET, HUB_SERVICE

HUB_SECRET = "rljob-nats-hub"  # noqa: S105 a name
"""At a site: credentials of the connection to the hub, and the certificate of the hub's authority."""
_FILES = ("namespace", "operator-rbac", "operator", "nats", "nats-setup", "network-policies")
_CLUSTER_SCOPED = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
_ALL = ["list", "watch", "create", "patch", "delete"]
RULES: list[dict[str, list[str]]] = [
    {"apiGroups": ["rljob.dev"], "resources": ["rolloutpools"], "verbs": _ALL},
    {"apiGroups": ["rljob.dev"], "resources": ["rolloutpools/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["configmaps", "serviceaccounts"], "verbs": _ALL},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": _ALL},
    {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["list"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": _ALL},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": _ALL},
]
"""What a site's operator does, and nothing more."""


@dataclass(frozen=True, slots=True)
class Hub:
    """What a site knows of its hub.

    Attributes:
        host, port: of its NATS server, for leafnodes.
        is_ip: whether the host is an IP address.
        credentials: of the connection.
        authority: certificate (PEM) of the authority that has signed the server's.
    """

    host: str
    port: int
    is_ip: bool
    credentials: str
    authority: str


def installation(
    site: str, hub: Hub, *, domain: str, image: str, worker_image: str, system: str
) -> list[Manifest]:
    """All objects, in the order in which they are applied.

    Args:
        site: its name.
        hub: to which it belongs.
        domain: of its NATS server.
        image: of the operator.
        worker_image: of engines, where a pool names none.
        system: namespace of everything.
    """
    found = [*_base("namespace"), crds()["rolloutpools.yaml"]]
    for name in _FILES[1:]:
        found += [o for o in _base(name) if o["metadata"]["name"] != "rljob-operator-sites"]
    for o in found:
        kind, name = o["kind"], o["metadata"]["name"]
        if kind == "Namespace":
            o["metadata"]["name"] = system
        if kind not in _CLUSTER_SCOPED:
            o["metadata"]["namespace"] = system
        for subject in o.get("subjects", ()):
            subject["namespace"] = system
        if (kind, name) == ("ClusterRole", "rljob-operator"):
            o["rules"] = copy.deepcopy(RULES)
        elif (kind, name) == ("Deployment", "rljob-operator"):
            _operator(o, site, image, worker_image, system)
        elif (kind, name) == ("ConfigMap", "nats"):
            o["data"]["nats-server.conf"] = _at_site(o["data"]["nats-server.conf"], domain, hub)
        elif (kind, name) == ("StatefulSet", "nats"):
            (files,) = (v for v in o["spec"]["template"]["spec"]["volumes"] if v["name"] == "config")
            files["projected"]["sources"] += [{"secret": {"name": n}} for n in (HUB_SECRET, BORDER_SECRET)]
        elif (kind, name) == ("Role", "rljob-nats-setup"):
            (read,) = (r for r in o["rules"] if "get" in r["verbs"])
            read["resourceNames"].append(BORDER_SECRET)
        elif (kind, name) == ("Job", "rljob-nats-setup"):
            (container,) = o["spec"]["template"]["spec"]["containers"]
            container["image"] = image
            container["env"].append({"name": "RLJOB_SITE", "value": site})
        elif (kind, name) == ("NetworkPolicy", "nats"):
            (names,) = (r for r in _egress_of_operator(found) if any(p["port"] == 53 for p in r["ports"]))
            leaf = {"ports": [{"protocol": "TCP", "port": hub.port}]}
            o["spec"]["egress"] = [copy.deepcopy(names), leaf]
    return [*found, *_hub_objects(hub, system)]


def _base(name: str) -> list[Manifest]:
    """The objects of a file of `manifests/base`: of the checkout, or of the installed package."""
    for folder in (Path(__file__).parents[1] / "base", Path(__file__).parents[3] / "manifests" / "base"):
        if (file := folder / f"{name}.yaml").exists():
            return [o for o in YAML(typ="safe").load_all(file.read_text(encoding="utf-8")) if o]
    raise FileNotFoundError(f"manifests/base/{name}.yaml")


def _operator(deployment: Manifest, site: str, image: str, worker_image: str, system: str) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = image
    changed = {
        "RLJOB_NATS_URL": f"tls://nats.{system}:4222",
        **({"RLJOB_WORKER_IMAGE": worker_image} if worker_image else {}),
    }
    for entry in container["env"]:
        if entry["name"] in changed:
            entry["value"] = changed[entry["name"]]
    container["env"].insert(0, {"name": "RLJOB_SITE", "value": site})


def _at_site(config: str, domain: str, hub: Hub) -> str:
    """The configuration of a site's server: it is no hub, and connects to one."""
    before, _, rest = config.partition("leafnodes {")
    _, _, after = rest.partition("\n}\n")
    lines = [
        "include border.conf",
        "leafnodes {",
        "  reconnect: 1s",
        "  remotes: [{",
        f'    url: "tls://{HUB_SERVICE}:{hub.port}"',
        "    account: $BORDER",
        "    credentials: /etc/nats/leaf.creds",
        "    compression: s2_auto",
        "    tls { ca_file: /etc/nats/hub.crt }",
        "  }]",
        "}",
    ]
    changed = before.replace("domain: hub", f"domain: {domain}").replace(
        "ping_interval: 10s", "ping_interval: 3s"
    )
    return changed + "\n".join(lines) + "\n" + after


def _egress_of_operator(objects: list[Manifest]) -> Iterator[dict[str, Any]]:
    for o in objects:
        if (o["kind"], o["metadata"]["name"]) == ("NetworkPolicy", "rljob-operator"):
            yield from o["spec"]["egress"]


def _hub_objects(hub: Hub, system: str) -> list[Manifest]:
    files = {"leaf.creds": hub.credentials, "hub.crt": hub.authority}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": HUB_SECRET, "namespace": system},
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }
    metadata = {"name": HUB_SERVICE, "namespace": system}
    if not hub.is_ip:
        spec: dict[str, Any] = {"type": "ExternalName", "externalName": hub.host}
        return [secret, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}]
    ports = [{"name": "leafnodes", "port": hub.port}]
    return [
        secret,
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | {"labels": {"kubernetes.io/service-name": HUB_SERVICE}},
            "addressType": "IPv6" if ":" in hub.host else "IPv4",
            "ports": [{"name": "leafnodes", "port": hub.port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [hub.host]}],
        },
    ]
