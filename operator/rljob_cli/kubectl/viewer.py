"""A viewer's way to the streams of a job on a cluster: the server's address, a port-forward, and credentials."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rljob_cli.kubectl.cluster import UserCluster
from rljob_cli.kubectl.port_forward import forwarded
from rljob_cli.kubectl.refusals import ClusterForbids, ClusterRefused
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_operator import names
from rljob_operator.children.nats_credentials import VIEWER_SERVER
from rljob_operator.children.server_rules import ServicePort, service_of
from rljob_operator.children.storage import holds, mount_path
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import CREDENTIALS_FILE
from rljob_operator.nats.permissions import Holder

_TOKEN = re.compile(r"(?<=-----BEGIN NATS USER JWT-----\n).*?(?=\n)")
_URIS = ("weights_uri", "checkpoint_uri", "trainer_log_uri", "samples_uri")
_UNSEEN = "the operator has not seen it yet"


@dataclass(frozen=True, slots=True)
class JobViewer:
    """Reads what people may see of one job.

    Args:
        cluster: where the job is.
        job: its name.
        storage: by name of a claim, where it is mounted on this machine.
    """

    cluster: UserCluster
    job: str
    storage: Mapping[str, Path] = field(default_factory=dict)

    def config(self) -> JobConfig:
        """The configuration of the job's workers, with the folders of claims as they are on this machine.

        Raises:
            SpecError: the operator has made none, or this release does not know a field of it.
        """
        found = self.cluster.config_map(self.job, names.audit(self.job))
        if found is None or names.CONFIG_FILE not in found:
            raise SpecError(self.job, f"has no ConfigMap {names.audit(self.job)}: {_UNSEEN}")
        try:
            config = JobConfig.model_validate_json(found[names.CONFIG_FILE])
        except ValueError as error:
            raise SpecError(
                self.job, f"install the release of rljob that the cluster has: {error}"
            ) from error
        return config.model_copy(update={name: self._here(getattr(config, name)) for name in _URIS})

    def _here(self, uri: str) -> str:
        for claim, folder in self.storage.items():
            if holds(claim, uri):
                return f"{folder}{uri.removeprefix(mount_path(claim))}"
        return uri

    def server(self) -> str:
        """The address of the job's NATS server, inside the cluster.

        Raises:
            SpecError: the operator has not said it, or the job's credentials are its own.
        """
        return self._made()[VIEWER_SERVER]

    def write_credentials(self, file: Path) -> bool:
        """Write the credentials, with the token that is valid now; False if the server asks for none."""
        made = self._made()
        if CREDENTIALS_FILE not in made:
            return False
        tokens = self.cluster.config_map(self.job, names.tokens(self.job)) or {}
        token = tokens.get(Holder.VIEWER.value)
        if token is None:
            raise SpecError(self.job, f"has no viewer's token in {names.tokens(self.job)}: {_UNSEEN}")
        replace_text(file, _TOKEN.sub(token, made[CREDENTIALS_FILE], count=1))
        return True

    def _made(self) -> dict[str, str]:
        found = self.cluster.config_map(self.job, names.viewer(self.job))
        if found is None:
            raise SpecError(self.job, f"has no ConfigMap {names.viewer(self.job)}: {_UNSEEN}")
        return found

    def _service(self, service: ServicePort, url: str) -> Manifest | None:
        """The Service; None if the URL names a server outside the cluster, by a host of the same form.

        Raises:
            ClusterForbids: this person may not get Services there, and this machine does not know the host.
        """
        try:
            return self.cluster.service(service.namespace, service.name)
        except ClusterForbids:
            if _resolves(urlsplit(url).hostname or ""):
                return None
            raise

    @contextmanager
    def reached(self) -> Iterator[str]:
        """Yield an address of the job's NATS server that this machine reaches, until the context ends.

        Raises:
            ClusterRefused: there is no way to it.
        """
        url = self.server()
        service = service_of(url, self.cluster.namespace)
        found = None if service is None else self._service(service, url)
        if service is None or found is None:  # outside the cluster
            yield url
            return
        namespace, port = service.namespace, _target(found, service.port)
        selector = ",".join(f"{name}={value}" for name, value in found["spec"]["selector"].items())

        def connect() -> Any:
            pods = self.cluster.selected_pods(namespace, selector)
            ready = [pod for pod in pods if _is_ready(pod)]
            if not ready:
                raise ClusterRefused(f"no pod of the NATS server ({selector} in {namespace}) is ready")
            pod = ready[0]
            number = port if isinstance(port, int) else _port_of(pod, port)
            return self.cluster.forward(namespace, pod["metadata"]["name"], number).socket(number)

        with forwarded(connect) as local:
            # The server's certificate names localhost for this.
            yield f"{urlsplit(url).scheme}://localhost:{local}"


def _resolves(host: str) -> bool:
    """Whether this machine knows an address of the host."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _target(service: Manifest, port: int) -> int | str:
    """The port of a Service's pods that one of its own leads to, or its name."""
    for found in service["spec"]["ports"]:
        if found["port"] == port:
            target: int | str = found.get("targetPort", port)
            return target
    raise ClusterRefused(f"the Service {service['metadata']['name']} has no port {port}")


def _port_of(pod: Manifest, name: str) -> int:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            if port.get("name") == name:
                number: int = port["containerPort"]
                return number
    raise ClusterRefused(f"the pod {pod['metadata']['name']} has no port {name}")


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(
        found["type"] == "Ready" and found["status"] == "True" for found in conditions
    )
