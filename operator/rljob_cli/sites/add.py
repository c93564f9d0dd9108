"""What `rljob site add` does: it reads what the hub has, creates the Site, and makes what the site applies."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import ValidationError

from rljob_cli.sites.installation import Hub, installation
from rljob_core.errors import SpecError
from rljob_core.spec import API_VERSION, Site
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.nats.accounts import CERTIFICATE_SECRET, ISSUER_FILE, ISSUER_SECRET
from rljob_operator.nats.credentials import Issuer
from rljob_operator.nats.site_accounts import SiteAccounts

_PORT = 7422
_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where a site reaches the hub's NATS server.

    Attributes:
        host: a name in DNS, or an IP address.
        port: that takes leafnodes.
    """

    host: str
    port: int = _PORT

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.

        Raises:
            SpecError: it is no address.
        """
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:/]+))(?::(\d{1,5}))?", text.lower())
        host = (match[1] or match[2]) if match else ""
        port = int(match[3] or _PORT) if match else 0
        if not (_HOST.fullmatch(host) or _ip(host)) or not 0 < port < 65_536:
            raise SpecError(
                "--hub", f'"{text}" is no address: write one such as nats.hub.example or 203.0.113.7:7422'
            )
        return cls(host, port)

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host, if it is an IP address."""
        return _ip(self.host)


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


async def add_site(
    name: str,
    address: HubAddress,
    *,
    namespaces: Sequence[str],
    create: bool,
    image: str,
    system: str,
) -> tuple[list[Manifest], list[str]]:
    """What the site's cluster applies, and what was done at the hub, in words.

    Args:
        name: of the Site.
        address: at which the site reaches the hub.
        namespaces: whose jobs may have pools there.
        create: whether the Site is created, or gets these namespaces besides its own.
        image: of the site's operator; empty for that of the hub's.
        system: namespace of the hub's operator and NATS server.

    Raises:
        SpecError: a name is none, or the hub is not installed with credentials.
        ApiError: the API server refuses.
    """
    wanted = _checked(name, namespaces)
    api = KubeApi(KubeLogin())
    try:
        issuer = Issuer.read(await _file(api, system, ISSUER_SECRET, ISSUER_FILE))
        authority = await _file(api, system, CERTIFICATE_SECRET, "ca.crt")
        images = await _images(api, system)
        known = await api.get(Ref("Site", "", name))
        said = [await _created(api, wanted, known)] if create else []
    finally:
        await api.close()
    domain = ((known or {}).get("spec") or {}).get("domain", "")
    hub = Hub(
        host=address.host,
        port=address.port,
        is_ip=address.ip is not None,
        credentials=SiteAccounts(issuer, name, domain=domain).leaf_credentials(),
        authority=authority,
    )
    objects = installation(
        name, hub, domain=domain or name, image=image or images[0], worker_image=images[1], system=system
    )
    said.append(
        f"at the site: kubectl apply --server-side -f FILE   (it holds a secret: the connection to {address.host})"
    )
    return objects, said


def _checked(name: str, namespaces: Sequence[str]) -> Manifest:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "Site",
        "metadata": {"name": name},
        "spec": {"namespaces": list(namespaces)},
    }
    try:
        Site.model_validate(manifest, by_alias=True)
    except ValidationError as error:
        found = error.errors()[0]
        field = "--for" if "namespaces" in found["loc"] else "NAME"
        raise SpecError(field, f"{found.get('input')!r}: {found['msg']}") from error
    return manifest


async def _created(api: KubeApi, wanted: Manifest, known: Manifest | None) -> str:
    """Let the hub have the Site, with these namespaces among its own; returns what was done."""
    name, new = wanted["metadata"]["name"], wanted["spec"]["namespaces"]
    if known is None:
        await api.apply_new(wanted)
        said = f"Site {name} is created"
    else:
        before = (known.get("spec") or {}).get("namespaces") or []
        new = [*before, *(one for one in new if one not in before)]
        if new == before:
            return f"Site {name} is there, for {', '.join(new) or 'no namespace yet: add --for'}"
        await api.patch(Ref("Site", "", name), {"spec": {"namespaces": new}})
        said = f"Site {name} is changed"
    return f"{said}, for {', '.join(new) if new else 'no namespace yet: add --for'}"


async def _file(api: KubeApi, namespace: str, secret: str, name: str) -> str:
    found = await api.get(Ref("Secret", namespace, secret))
    try:
        return base64.b64decode(((found or {}).get("data") or {})[name]).decode()
    except (KeyError, ValueError) as error:
        raise SpecError(
            "--system",
            f"namespace {namespace} has no Secret {secret} with {name}: name the namespace of the hub's operator; "
            "its NATS server has to ask for credentials",
        ) from error


async def _images(api: KubeApi, namespace: str) -> tuple[str, str]:
    """The image of the hub's operator, and that of workers."""
    found = await api.get(Ref("Deployment", namespace, "rljob-operator"))
    if found is None:
        raise SpecError(
            "--system", f"namespace {namespace} has no Deployment rljob-operator: name the operator's"
        )
    (container,) = (c for c in found["spec"]["template"]["spec"]["containers"] if c["name"] == "operator")
    values = {one["name"]: one.get("value", "") for one in container.get("env", [])}
    return container["image"], values.get("RLJOB_WORKER_IMAGE", "")
