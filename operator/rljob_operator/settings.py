"""The operator's settings, read from environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nats.aio.client import RawCredentials
from nkeys import NkeysError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rljob_core.errors import SpecError
from rljob_core.spec import HUB
from rljob_core.spec.remote_forms import ONE_SCHEME, one_scheme
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.templates import merge
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import Issuer, operator_credentials

_SHAPE: Manifest = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        **{f: [] for f in ("containers", "initContainers", "volumes", "imagePullSecrets")},
        **{f: {} for f in ("securityContext", "nodeSelector", "affinity")},
    },
}
"""The parts of every pod template that a patch can be applied to."""
_RANKS_GIVE_UP = (
    ": ranks that wait for others give up after 600 s, and the gang would fail before it is made smaller"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator runs.

    Attributes:
        defaults: the cluster's defaults for jobs.
        site: name of the site whose pools this operator runs; empty at the hub, where the RLJobs are.
        namespaces: the watched namespaces; empty for all.
        notice_taints: keys of the taints of nodes that are about to be taken away; empty to watch no nodes.
        job_rules: folder with the rules for what jobs may name, a file for each key; None if there are none.
        nats_credentials: the operator's own, or the path of a file with them; None if the server does not authenticate
            clients.
        nats_authority: certificates of those who sign the NATS server's (PEM); a `tls://` URL needs them.
        nats_job_bytes: that the streams of a job may take together, of one replica; None for a share of a server.
        nats_namespace_bytes: that those of all jobs of a namespace may take; None for a share of the servers.
        probe_host: address on which the probes are served.
        probe_port: port of `/healthz`, `/readyz` and `/metrics`; 0 for any free port.
        workers: number of jobs that are reconciled at once.
        lease: name of the Lease whose holder works while other processes stand by; empty if there are no others.
        pod: name of this process's pod; empty outside a cluster.
        pod_namespace: of that pod, and of the Lease.
        log_level: least severe level that is logged.
        log_format: `json`, or another value for plain text.
    """

    defaults: ClusterDefaults
    site: str = ""
    namespaces: tuple[str, ...] = ()
    notice_taints: tuple[str, ...] = ()
    job_rules: str | None = None
    nats_credentials: str | RawCredentials | None = None
    nats_authority: str = ""
    nats_job_bytes: int | None = None
    nats_namespace_bytes: int | None = None
    probe_host: str = "0.0.0.0"  # noqa: S104 kubelet asks from outside the pod
    probe_port: int = 8080
    workers: int = 8
    lease: str = ""
    pod: str = ""
    pod_namespace: str = ""
    log_level: str = "INFO"
    log_format: str = "json"

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from environment variables.

        Raises:
            SpecError: a variable is missing or wrong.
        """

        def number(name: str, default: int, *, least: int, most: int, because: str = "") -> int:
            text = environment.get(name, str(default))
            if not text.isdecimal():
                raise SpecError(name, f"{text!r} is not a number: write one, such as {default}")
            if not least <= int(text) <= most:
                raise SpecError(name, f"{text} must be at least {least} and at most {most}{because}")
            return int(text)

        def one_of(name: str, default: str, *values: str) -> str:
            text = environment.get(name, default)
            if text not in (default, *values):
                raise SpecError(name, f"{text!r} must be one of {', '.join((default, *values))}")
            return text

        url = environment.get("RLJOB_NATS_URL")
        if not url:
            raise SpecError("RLJOB_NATS_URL", "is not set: give the NATS server's address, nats://host:4222")
        if not one_scheme(url):
            raise SpecError("RLJOB_NATS_URL", f"{url} {ONE_SCHEME}")
        storage = environment.get("RLJOB_STORAGE", "").rstrip("/")
        secret = _file(environment, "RLJOB_NATS_ISSUER")
        authority = _file(environment, "RLJOB_NATS_CA")
        if authority and "BEGIN CERTIFICATE" not in authority:
            raise SpecError("RLJOB_NATS_CA", f"{environment['RLJOB_NATS_CA']} holds no certificate (PEM)")
        if url.startswith("tls://") and not (authority or secret):
            raise SpecError(
                "RLJOB_NATS_CA",
                f"is not set, and RLJOB_NATS_URL is {url}: name a file with the certificates (PEM) of those who sign "
                "the server's; for a public authority, the system's",
            )
        issuer = replace(_issuer(secret), authority=authority) if secret else None
        site = _site_name(environment)
        return cls(
            defaults=ClusterDefaults(
                nats_url=url,
                weights_uri=f"{storage}/weights" if storage else "",
                checkpoint_uri=f"{storage}/checkpoints" if storage else "",
                trainer_log_uri="",
                image=environment.get("RLJOB_WORKER_IMAGE", "rljob-worker"),
                per_job=True,
                containers=True,
                sites=True,
                issuer=issuer,
                token_seconds=number("RLJOB_NATS_CREDENTIALS_HOURS", 168, least=1, most=87_600) * 3600,
                gang_seconds=number("RLJOB_GANG_SECONDS", 60, least=1, most=500, because=_RANKS_GIVE_UP),
                template=_template(environment),
                metrics_port=number("RLJOB_WORKER_METRICS_PORT", 9464, least=0, most=65_535),
                scraper_namespaces=_scraper_namespaces(environment),
                egress=_egress(environment),
            ),
            site=site,
            namespaces=_words(environment, "WATCH_NAMESPACES"),
            notice_taints=_words(environment, "RLJOB_NOTICE_TAINTS"),
            job_rules=environment.get("RLJOB_JOB_RULES") or None,
            nats_credentials=(
                RawCredentials(operator_credentials(issuer))  # with what this release needs to be allowed
                if issuer
                else environment.get("RLJOB_NATS_CREDENTIALS") or None
            ),
            nats_authority=issuer.trusted if issuer else authority,
            nats_job_bytes=number("RLJOB_NATS_JOB_GB", 0, least=0, most=1_000_000) * 1_000_000_000 or None,
            nats_namespace_bytes=number("RLJOB_NATS_NAMESPACE_GB", 0, least=0, most=1_000_000) * 1_000_000_000
            or None,
            probe_host=environment.get("RLJOB_PROBE_HOST", "0.0.0.0"),  # noqa: S104
            probe_port=number("RLJOB_PROBE_PORT", 8080, least=0, most=65_535),
            workers=number("RLJOB_WORKERS", 8, least=1, most=1024),
            lease=(lease := _lease(environment)),
            pod=environment.get("POD_NAME", ""),
            pod_namespace=environment.get("POD_NAMESPACE", "") if lease else "",
            log_level=one_of("RLJOB_LOG_LEVEL", "INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL"),
            log_format=environment.get("RLJOB_LOG_FORMAT", "json"),
        )


def _site_name(environment: Mapping[str, str]) -> str:
    """The site whose operator this is; empty at the hub.

    Raises:
        SpecError: it is no name of a Site.
    """
    name = "RLJOB_SITE"
    text = environment.get(name, "")
    if text and (text == HUB or re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", text) is None):
        raise SpecError(
            name, f"{text!r} is not the name of a Site: write what `kubectl get sites` shows at the hub"
        )
    return text


def _lease(environment: Mapping[str, str]) -> str:
    """The name of the Lease by which processes agree who works; empty if this one always does.

    Raises:
        SpecError: it is no name, or nothing says in which namespace it is.
    """
    name = "RLJOB_LEASE"
    text = environment.get(name, "")
    if text and re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text) is None:
        raise SpecError(name, f"{text!r} is not the name of a Lease: write one, such as rljob-operator")
    if text and not environment.get("POD_NAMESPACE"):
        raise SpecError("POD_NAMESPACE", f"is not set, and {name} is: give the namespace of this pod")
    return text


def _words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The words of a variable that has commas between them."""
    return tuple(word.strip() for word in environment.get(name, "").split(",") if word.strip())


def _scraper_namespaces(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The namespaces whose scrapers may read metrics; empty for all.

    Raises:
        SpecError: a name is not that of a namespace.
    """
    name = "RLJOB_SCRAPER_NAMESPACES"
    found = _words(environment, name)
    for word in found:
        if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", word) is None:
            raise SpecError(
                name, f"{word!r} is not the name of a namespace: write names, with commas between"
            )
    return found


def _file(environment: Mapping[str, str], name: str) -> str:
    """The content of the file that a variable names; empty if the variable is not set.

    Raises:
        SpecError: the file cannot be read.
    """
    path = environment.get(name)
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(name, f"{path} cannot be read: {error}") from error


def _issuer(text: str) -> Issuer:
    try:
        found = Issuer.read(text)
        operator_credentials(found)  # fails if the seed is not valid
    except (ValueError, TypeError, AttributeError, NkeysError) as error:
        raise SpecError("RLJOB_NATS_ISSUER", f"is not what `rljob nats-init` writes: {error}") from error
    return found


def _egress(environment: Mapping[str, str]) -> tuple[Manifest, ...]:
    """Egress rules for all workers; none if the file does not exist, because its ConfigMap is optional."""
    name = "RLJOB_WORKER_EGRESS"
    if not Path(environment.get(name) or ".").is_file():
        return ()
    try:
        found = YAML(typ="safe").load(_file(environment, name)) or []
    except YAMLError as error:
        raise SpecError(name, f"is not YAML: {error}") from error
    if not isinstance(found, list) or not all(
        isinstance(r, dict) and set(r) <= {"to", "ports"} for r in found
    ):
        raise SpecError(name, "is not a list of egress rules: write to and ports, as in a NetworkPolicy")
    return tuple(found)


def _template(environment: Mapping[str, str]) -> Manifest:
    """The worker template; empty if the file does not exist, because its ConfigMap is optional."""
    name = "RLJOB_WORKER_TEMPLATE"
    if not Path(environment.get(name) or ".").is_file():
        return {}
    try:
        found = YAML(typ="safe").load(_file(environment, name)) or {}
    except YAMLError as error:
        raise SpecError(name, f"is not YAML: {error}") from error
    if not isinstance(found, dict) or not set(found) <= {"metadata", "spec"}:
        raise SpecError(name, "is not a pod template: write metadata and spec, as in a Deployment's template")
    template: Manifest = {field: value for field, value in found.items() if value is not None}
    merge(_SHAPE, template, name)  # refuses a template that could be applied to no pod
    return template
