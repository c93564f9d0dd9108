"""The rule of a NetworkPolicy that lets pods connect to the server that a URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from rljob_core.errors import SpecError
from rljob_operator import names
from rljob_operator.cluster.port import Manifest

HTTPS = 443
_URL = re.compile(
    r"^(?P<scheme>[a-z0-9]+)://(?:[^/@]*@)?(?P<host>\[[^\]]+\]|[^:/?#,\s]+)(?::(?P<port>\d+))?", re.ASCII
)
_PORTS = {"http": 80, "https": 443, "nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_SERVICE = re.compile(r"^(?P<name>[^.]+)(\.(?P<namespace>[^.]+)(\.svc(\.cluster\.local)?)?)?\.?$")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


def to_server(url: str) -> Manifest:
    """The rule that allows connections to a URL's host and port; a URL that cannot be read allows nothing."""
    found = _URL.match(url.strip())
    if found is None:
        return {"to": [{"ipBlock": {"cidr": "255.255.255.255/32"}}]}
    ports = [tcp(int(found["port"] or _PORTS.get(found["scheme"], HTTPS)))]
    host = found["host"].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        service = _SERVICE.match(host)
        if service is None:
            return {"ports": ports}
        return {"to": [pods_of(service["namespace"])], "ports": ports}
    return {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": ports}


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service."""

    namespace: str
    name: str
    port: int


def service_of(url: str, namespace: str) -> ServicePort | None:
    """The Service that a URL names for pods of a namespace, by the form of its host; None if it is no Service's."""
    found = _URL.match(url.strip())
    service = None if found is None else _SERVICE.match(found["host"])
    if found is None or service is None:
        return None
    port = int(found["port"] or _PORTS.get(found["scheme"], HTTPS))
    return ServicePort(service["namespace"] or namespace, service["name"], port)


def check_server(url: str, field: str) -> None:
    """Whether an API server takes the rule of `to_server`.

    Raises:
        SpecError: the URL has a port that no server has, or a host that is none.
    """
    found = _URL.match(url.strip())
    if found is None:
        return
    if found["port"] and not (len(found["port"]) <= 5 and 1 <= int(found["port"]) <= 65_535):
        raise SpecError(field, f"{url} has a port that no server has: write one from 1 to 65535")
    service = _SERVICE.match(found["host"])
    namespace = service and service["namespace"]
    if "%" in found["host"] or (namespace and not _LABEL_VALUE.fullmatch(namespace)):
        raise SpecError(field, f"{url} has no host that can be reached: write a name or an address")


def pods_of(namespace: str | None) -> Manifest:
    """The peer that is all pods of a namespace; None: of the job's own."""
    if namespace is None:
        return {"podSelector": {}}
    return {"namespaceSelector": {"matchLabels": {names.LABEL_NAMESPACE: namespace}}}


def tcp(port: int) -> Manifest:
    """That port, in a rule."""
    return {"protocol": "TCP", "port": port}
